package disk

import (
	"math/rand/v2"
	"slices"
)

// change sets one name of one directory; a nil to removes it.
type change struct {
	dir  *inode
	name string
	to   *inode
}

// dirOp is a directory operation that has been carried out and not yet made
// durable.
type dirOp struct {
	changes []change
	needs   []*dirOp // pending operations on the same names before it
	syncs   []*inode // directories whose SyncDir is still missing
	stored  bool
}

type entryKey struct {
	dir  *inode
	name string
}

// namespace is the tree of names with its pending operations.
type namespace struct {
	root    *inode
	pending []*dirOp
	last    map[entryKey]*dirOp // the last pending operation on a name
}

func newNamespace() namespace {
	root := newDir()
	root.links = 1
	return namespace{root: root, last: map[entryKey]*dirOp{}}
}

// apply carries changes out for processes and notes them as pending.
func (n *namespace) apply(changes ...change) {
	op := &dirOp{changes: changes}
	for _, c := range changes {
		if old := c.dir.entries[c.name]; old != nil {
			old.links--
		}
		if c.to == nil {
			delete(c.dir.entries, c.name)
		} else {
			c.to.links++
			c.dir.entries[c.name] = c.to
		}
		key := entryKey{c.dir, c.name}
		if before := n.last[key]; before != nil && !slices.Contains(op.needs, before) {
			op.needs = append(op.needs, before)
		}
		if !slices.Contains(op.syncs, c.dir) {
			op.syncs = append(op.syncs, c.dir)
		}
	}
	for _, c := range changes {
		n.last[entryKey{c.dir, c.name}] = op
	}
	n.pending = append(n.pending, op)
}

// sync makes the entries of dir durable.
func (n *namespace) sync(dir *inode) {
	for _, op := range n.pending {
		at := slices.Index(op.syncs, dir)
		if at < 0 {
			continue
		}
		op.syncs = slices.Delete(op.syncs, at, at+1)
		if len(op.syncs) == 0 {
			op.store()
		}
	}
	n.pending = slices.DeleteFunc(n.pending, func(op *dirOp) bool { return op.stored })
	for key, op := range n.last {
		if op.stored {
			delete(n.last, key)
		}
	}
}

// store makes op durable, and what it needs first.
func (op *dirOp) store() {
	if op.stored {
		return
	}
	for _, before := range op.needs {
		before.store()
	}
	op.stored = true
	for _, c := range op.changes {
		if c.to == nil {
			delete(c.dir.stored, c.name)
		} else {
			c.dir.stored[c.name] = c.to
		}
	}
}

// powerCut takes or drops each pending operation and leaves the tree as the
// device has it.
func (n *namespace) powerCut(r *rand.Rand) {
	mode := r.IntN(4)
	front := r.IntN(len(n.pending) + 1)
	for i, op := range n.pending {
		var take bool
		switch mode {
		case 0: // all
			take = true
		case 1: // in order, up to some point
			take = i < front
		default: // each by itself
			take = r.IntN(2) == 0
		}
		for _, before := range op.needs {
			take = take && before.stored
		}
		if take {
			op.store()
		}
	}
	n.pending, n.last = nil, map[entryKey]*dirOp{}
	n.walk(func(f *inode) {
		f.links = 0
		if f.dir {
			f.entries = make(map[string]*inode, len(f.stored))
			for name, child := range f.stored {
				f.entries[name] = child
			}
		} else {
			f.powerCut(r)
		}
	})
	n.root.links = 1
	n.walk(func(f *inode) {
		for _, child := range f.entries {
			child.links++
		}
	})
}

// walk visits every inode once, parents first and names in order. It follows
// entries, so a visit may settle those of a directory before they are followed.
func (n *namespace) walk(visit func(*inode)) {
	seen := map[*inode]bool{}
	var down func(*inode)
	down = func(f *inode) {
		if seen[f] {
			return
		}
		seen[f] = true
		visit(f)
		for _, name := range sortedNames(f.entries) {
			down(f.entries[name])
		}
	}
	down(n.root)
}

func sortedNames(entries map[string]*inode) []string {
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// clone copies the tree with everything pending; handles are left behind.
func (n *namespace) clone() namespace {
	inodes := map[*inode]*inode{nil: nil}
	var copyInode func(*inode) *inode
	copyInode = func(f *inode) *inode {
		if c, ok := inodes[f]; ok {
			return c
		}
		c := &inode{}
		*c = *f
		inodes[f] = c
		if f.dir {
			c.entries, c.stored = map[string]*inode{}, map[string]*inode{}
			for name, child := range f.entries {
				c.entries[name] = copyInode(child)
			}
			for name, child := range f.stored {
				c.stored[name] = copyInode(child)
			}
			return c
		}
		c.data, c.device, c.lengths = slices.Clone(f.data), slices.Clone(f.device), slices.Clone(f.lengths)
		c.sectors = make(map[int64]*sector, len(f.sectors))
		for i, s := range f.sectors {
			cs := *s
			cs.versions = slices.Clone(s.versions) // the bytes of a version never change
			c.sectors[i] = &cs
		}
		return c
	}
	ops := map[*dirOp]*dirOp{}
	c := namespace{root: copyInode(n.root), last: map[entryKey]*dirOp{}}
	for _, op := range n.pending {
		co := &dirOp{}
		for _, ch := range op.changes {
			co.changes = append(co.changes, change{copyInode(ch.dir), ch.name, copyInode(ch.to)})
		}
		for _, before := range op.needs {
			if ops[before] != nil { // nil: stored since
				co.needs = append(co.needs, ops[before])
			}
		}
		for _, dir := range op.syncs {
			co.syncs = append(co.syncs, copyInode(dir))
		}
		ops[op] = co
		c.pending = append(c.pending, co)
	}
	for key, op := range n.last {
		c.last[entryKey{copyInode(key.dir), key.name}] = ops[op]
	}
	return c
}
