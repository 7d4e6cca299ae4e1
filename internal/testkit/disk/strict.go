package disk

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/felixlog/felix/storage/vfs"
)

// ErrPowerOff is the answer to every operation on a disk that was stopped, killed
// or crashed, and on files opened before that.
var ErrPowerOff = errors.New("disk: power is off")

// Options of a Strict. The zero value is a large disk without limits.
type Options struct {
	// Capacity in bytes, in blocks of 4096; 0 is unlimited. SetCapacity changes it.
	Capacity int64
	// MaxOpen is how many files and locks may be open at once; opening one more is
	// EMFILE. 0 is unlimited.
	MaxOpen int
	// NoAllocate makes Allocate answer vfs.ErrUnsupported.
	NoAllocate bool
}

// Strict is a file system in memory that models the loss of power; the package
// comment has the model. Paths are slash-separated; "/a" and "a" are one file, and
// the root directory is there from the start. Its methods may be called from
// several goroutines.
//
// One Strict is one life of a disk: Crash and Kill end it and return the next,
// which holds what survived. Numbering of operations begins anew with each life,
// the trace and its hash go on.
type Strict struct {
	mu struct {
		sync.Mutex
		namespace
		opts  Options
		rand  *rand.Rand
		off   bool
		stop  int // power goes off after so many operations; <0: never
		ops   int
		opens int
		held  map[*inode]int // open handles, locks included
		locks map[*inode]bool
		trace []Event
		sum   hash.Hash64
	}
}

// NewStrict returns an empty disk whose random choices come from seed.
func NewStrict(seed uint64, opts Options) *Strict {
	d := newStrict(newRand(seed), opts)
	d.mu.namespace = newNamespace()
	d.mu.sum = fnv.New64a()
	return d
}

func newStrict(r *rand.Rand, opts Options) *Strict {
	d := &Strict{}
	d.mu.opts, d.mu.rand, d.mu.stop = opts, r, -1
	d.mu.held, d.mu.locks = map[*inode]int{}, map[*inode]bool{}
	return d
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x5eed_d15c)) }

// SetCapacity changes the size of the disk; 0 is unlimited. What is stored stays
// even if it is more.
func (d *Strict) SetCapacity(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.opts.Capacity = bytes
}

// StopAfter switches the power off once n operations of this life have been done:
// the next one may still happen, in part or whole, but it and all others return
// ErrPowerOff. Operations that change nothing (reading, listing, opening what
// exists, closing) are not counted. A negative n takes the order back.
func (d *Strict) StopAfter(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.stop = n
}

// Ops counts the operations of this life that changed or flushed something, or
// tried to.
func (d *Strict) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.ops
}

// Off reports whether the power has gone.
func (d *Strict) Off() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.off
}

// Trace lists the counted operations of this life and those before it.
func (d *Strict) Trace() []Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.mu.trace)
}

// TraceHash is a hash over the trace and the bytes written. Two runs that agree in
// it made the same calls in the same order.
func (d *Strict) TraceHash() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.sum.Sum64()
}

// Crash cuts the power and returns the disk as it is found afterwards. d and its
// open files answer ErrPowerOff from then on.
func (d *Strict) Crash() *Strict {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.end("power cut")
	next.mu.powerCut(next.mu.rand)
	return next
}

// Kill ends the process and returns the disk as the next process finds it: with
// everything written and renamed, flushed or not, and still not durable where it
// was not. d and its open files answer ErrPowerOff from then on.
func (d *Strict) Kill() *Strict {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.end("kill")
	next.mu.walk(func(f *inode) {
		if !f.dir && next.mu.rand.IntN(2) == 0 {
			f.evict(next.mu.rand)
		}
	})
	return next
}

// end switches d off and moves its tree into a new life. Caller holds d.mu.
func (d *Strict) end(how string) *Strict {
	d.mu.off = true
	next := newStrict(d.mu.rand, d.mu.opts)
	next.mu.namespace = d.mu.namespace
	next.mu.trace, next.mu.sum = d.mu.trace, d.mu.sum
	d.mu.namespace = newNamespace()
	d.mu.trace, d.mu.sum = slices.Clone(d.mu.trace), fnv.New64a()
	next.record(Event{Op: opEnd, Path: how})
	return next
}

// Fork copies the disk with all that is pending, as Kill would leave it but for
// the sectors a failed flush gave up, with random choices from seed. d is left as
// it is. Crashing forks with different seeds gives different outcomes of one
// history.
func (d *Strict) Fork(seed uint64) *Strict {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := newStrict(newRand(seed), d.mu.opts)
	f.mu.namespace = d.mu.clone()
	f.mu.sum = fnv.New64a()
	for _, e := range d.mu.trace {
		f.record(e)
	}
	f.record(Event{Op: opEnd, Path: fmt.Sprintf("fork %d", seed)})
	return f
}

// Files returns every file's contents as processes see them, by path, and each
// directory as its path with a slash behind it. It works with the power off, as
// long as no Crash or Kill has moved the tree on.
func (d *Strict) Files() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string]string{}
	var down func(prefix string, dir *inode)
	down = func(prefix string, dir *inode) {
		for name, f := range dir.entries {
			if f.dir {
				files[prefix+name+"/"] = ""
				down(prefix+name+"/", f)
			} else {
				files[prefix+name] = string(f.data)
			}
		}
	}
	down("", d.mu.root)
	return files
}

// Put makes name hold data, durable at once with its directories, past all limits
// and without being counted: for tests that start from given bytes. It replaces
// the contents of a file that is there.
func (d *Strict) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := d.mu.root
	elems := split(name)
	for i, elem := range elems {
		next := dir.entries[elem]
		if next == nil {
			if i == len(elems)-1 {
				next = newFile()
			} else {
				next = newDir()
			}
			d.mu.apply(change{dir, elem, next})
		}
		d.mu.namespace.sync(dir)
		dir = next
	}
	dir.data, dir.device = slices.Clone(data), slices.Clone(data)
	dir.lengths, dir.sectors = nil, map[int64]*sector{}
}

// record appends to the trace. Caller holds d.mu.
func (d *Strict) record(e Event) {
	d.mu.trace = append(d.mu.trace, e)
	fmt.Fprintf(d.mu.sum, "%d %d %s %d %d %s\n", e.N, e.Op, e.Path, e.Off, e.Len, e.Err)
}

// step carries out one counted operation: do, or with the power going off just
// now, perhaps do; do is told that its caller will not hear of it. Caller holds
// d.mu.
func (d *Strict) step(e Event, do func(last bool) error) error {
	if d.mu.off {
		return ErrPowerOff
	}
	d.mu.ops++
	e.N = d.mu.ops
	last := d.mu.stop >= 0 && d.mu.ops > d.mu.stop
	var err error
	if !last {
		err = do(false)
	} else {
		d.mu.off = true
		if d.mu.rand.IntN(2) == 0 && do(true) == nil {
			e.Path += " (done)"
		}
		err = ErrPowerOff
	}
	if err != nil {
		e.Err = err.Error()
	}
	d.record(e)
	return err
}

// alive is the check of an operation that is not counted. Caller holds d.mu.
func (d *Strict) alive() error {
	if d.mu.off {
		return ErrPowerOff
	}
	return nil
}

func wrap(op Op, name string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &fs.PathError{Op: op.String(), Path: name, Err: err}
}

func split(name string) []string {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil
	}
	return strings.Split(name[1:], "/")
}

// lookup finds name. Caller holds d.mu.
func (d *Strict) lookup(name string) (*inode, error) {
	f := d.mu.root
	for _, elem := range split(name) {
		if !f.dir {
			return nil, syscall.ENOTDIR
		}
		next := f.entries[elem]
		if next == nil {
			return nil, syscall.ENOENT
		}
		f = next
	}
	return f, nil
}

// parent finds the directory of name and name's last element. Caller holds d.mu.
func (d *Strict) parent(name string) (*inode, string, error) {
	elems := split(name)
	if len(elems) == 0 {
		return nil, "", syscall.EBUSY
	}
	dir, err := d.lookup(strings.Join(elems[:len(elems)-1], "/"))
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", syscall.ENOTDIR
	}
	return dir, elems[len(elems)-1], nil
}

// room is the free space in bytes, in whole blocks. Caller holds d.mu.
func (d *Strict) room() int64 {
	if d.mu.opts.Capacity == 0 {
		return 1 << 50
	}
	var used int64
	d.mu.walk(func(f *inode) {
		if !f.dir {
			used += f.blocks()
		}
	})
	for f := range d.mu.held {
		if f.links == 0 {
			used += f.blocks()
		}
	}
	return max(d.mu.opts.Capacity-used, 0) / blockSize * blockSize
}

var _ vfs.FS = (*Strict)(nil)
