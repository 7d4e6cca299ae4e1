package projection

import (
	"bytes"
	"hash/maphash"

	"github.com/felixlog/felix/storage/segment"
)

// Millis is a point in time in milliseconds since the Unix epoch; 0 = never.
type Millis uint64

// Ref is what the index keeps of a key: where its newest record is, and what a
// reader must know before it goes there.
type Ref struct {
	Offset  segment.Offset // of the record that holds the value now
	Version segment.Offset // of the put that made the value; compaction keeps it
	Expires Millis         // absolute; 0 = never
	Size    uint32         // bytes the record takes in the log, header included
}

// entry is one key; no pointers, so that the collector skips the pages. Its fields are
// those of a Ref, so that it takes no more than it must.
type entry struct {
	offset, version segment.Offset
	expires         Millis
	key             keyRef
	size            uint32
	place           uint32 // 1 + place in the expiry heap; 0 = not in it
}

func (e *entry) ref() Ref {
	return Ref{Offset: e.offset, Version: e.version, Expires: e.expires, Size: e.size}
}

func (e *entry) setRef(r Ref) {
	e.offset, e.version, e.expires, e.size = r.Offset, r.Version, r.Expires, r.Size
}

// slot is a place of a hash table: the number of an entry + 1, 0 in an empty one, and
// above it the low half of the hash of its key. So a search touches no entry but, nearly
// always, its own, and a table that grows none at all: each would be a miss of the cache.
type slot uint64

func makeSlot(h uint64, n uint32) slot { return slot(h<<32) | slot(n+1) }

func (v slot) entry() uint32 { return uint32(v) - 1 }
func (v slot) hash() uint32  { return uint32(v >> 32) }

const (
	entriesPerPage = 1024
	firstPage      = 16
	subMin, subMax = 8, 4096 // slots of one sub-table
)

// Index maps keys to Refs. It is not safe for concurrent use; Projection adds the
// lock. The table is extendible: a directory of small open-addressed tables, each
// of which doubles up to subMax slots and then splits, so that no insertion moves
// more than one of them.
type Index struct {
	seed   maphash.Seed
	dir    []*subTable // 1<<depth pointers
	depth  uint8
	pages  [][]entry
	next   uint32   // entries ever taken from pages
	unused []uint32 // entries given back
	keys   keySlab
	heap   expiryHeap
	count  int
	live   int64 // bytes of records named
}

type subTable struct {
	depth uint8 // bits of the directory that are the same for all its keys
	used  int
	slots []slot
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		seed: maphash.MakeSeed(),
		dir:  []*subTable{{slots: make([]slot, subMin)}},
		keys: newKeySlab(),
	}
}

// Len is the number of keys.
func (x *Index) Len() int { return x.count }

// LiveBytes is the sum of the sizes of the records named, as the log stores them.
func (x *Index) LiveBytes() int64 { return x.live }

// MemoryBytes is what the index has reserved.
func (x *Index) MemoryBytes() int64 {
	n := x.keys.bytes + int64(cap(x.unused))*4 + x.heap.memory() + int64(len(x.dir))*8
	for _, p := range x.pages {
		n += int64(cap(p)) * entryBytes
	}
	seen := (*subTable)(nil)
	for _, t := range x.dir {
		if t != seen {
			n += int64(cap(t.slots))*8 + 40
			seen = t
		}
	}
	return n
}

const entryBytes = 40

func (x *Index) entry(n uint32) *entry {
	if n < firstPage {
		return &x.pages[0][n]
	}
	n -= firstPage
	return &x.pages[1+n/entriesPerPage][n%entriesPerPage]
}

func (x *Index) newEntry() uint32 {
	if n := len(x.unused); n > 0 {
		e := x.unused[n-1]
		x.unused = x.unused[:n-1]
		return e
	}
	n := x.next
	x.next++
	switch {
	case n == 0:
		x.pages = append(x.pages, make([]entry, firstPage))
	case n >= firstPage && (n-firstPage)%entriesPerPage == 0:
		x.pages = append(x.pages, make([]entry, entriesPerPage))
	}
	return n
}

func (x *Index) table(h uint64) *subTable {
	if x.depth == 0 {
		return x.dir[0]
	}
	return x.dir[h>>(64-x.depth)]
}

// find returns the place of key in its table and the entry's number, or ok false and
// the place where it would go.
func (x *Index) find(h uint64, key []byte) (t *subTable, at int, n uint32, ok bool) {
	t = x.table(h)
	mask := len(t.slots) - 1
	for i := int(h) & mask; ; i = (i + 1) & mask {
		v := t.slots[i]
		if v == 0 {
			return t, i, 0, false
		}
		if v.hash() == uint32(h) && bytes.Equal(x.keys.get(x.entry(v.entry()).key), key) {
			return t, i, v.entry(), true
		}
	}
}

// Get returns the Ref of key.
func (x *Index) Get(key []byte) (Ref, bool) {
	_, _, n, ok := x.find(maphash.Bytes(x.seed, key), key)
	if !ok {
		return Ref{}, false
	}
	return x.entry(n).ref(), true
}

// Put sets the Ref of key and returns the one it replaces. It fails only on a key
// over MaxKeyBytes or a full slab.
func (x *Index) Put(key []byte, ref Ref) (old Ref, replaced bool, err error) {
	h := maphash.Bytes(x.seed, key)
	t, at, n, ok := x.find(h, key)
	if ok {
		e := x.entry(n)
		old = e.ref()
		e.setRef(ref)
		x.live += int64(ref.Size) - int64(old.Size)
		if old.Expires != ref.Expires {
			x.setExpiry(n, ref.Expires)
		}
		return old, true, nil
	}
	k, err := x.keys.add(key)
	if err != nil {
		return Ref{}, false, err
	}
	n = x.newEntry()
	e := x.entry(n)
	*e = entry{key: k}
	e.setRef(ref)
	if ref.Expires != 0 {
		x.setExpiry(n, ref.Expires)
	}
	x.count++
	x.live += int64(ref.Size)
	t.slots[at] = makeSlot(h, n)
	t.used++
	if t.used*4 > len(t.slots)*3 {
		x.grow(t, h)
	}
	return Ref{}, false, nil
}

// Delete forgets key and returns what it named.
func (x *Index) Delete(key []byte) (Ref, bool) {
	h := maphash.Bytes(x.seed, key)
	t, at, n, ok := x.find(h, key)
	if !ok {
		return Ref{}, false
	}
	e := x.entry(n)
	old := e.ref()
	if e.place != 0 {
		x.heap.remove(x, int(e.place-1))
	}
	x.keys.remove(e.key)
	*e = entry{}
	x.unused = append(x.unused, n)
	x.count--
	x.live -= int64(old.Size)
	t.vacate(at)
	return old, true
}

// vacate empties a place and shifts back the keys whose probe passed over it.
func (t *subTable) vacate(at int) {
	mask := len(t.slots) - 1
	t.used--
	hole := at
	for i := (at + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		home := int(t.slots[i].hash()) & mask
		if (i-home)&mask >= (i-hole)&mask {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = 0
}

// grow doubles t, or splits it in two when it is at its largest.
func (x *Index) grow(t *subTable, h uint64) {
	if len(t.slots) < subMax {
		old := t.slots
		t.slots = make([]slot, len(old)*2)
		for _, v := range old {
			if v != 0 {
				t.put(v)
			}
		}
		return
	}
	if t.depth == x.depth {
		dir := make([]*subTable, 2*len(x.dir))
		for i, s := range x.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
		x.dir, x.depth = dir, x.depth+1
	}
	depth := t.depth + 1
	halves := [2]*subTable{
		{depth: depth, slots: make([]slot, subMax)},
		{depth: depth, slots: make([]slot, subMax)},
	}
	for _, v := range t.slots {
		if v != 0 {
			full := maphash.Bytes(x.seed, x.keys.get(x.entry(v.entry()).key))
			half := halves[full>>(64-depth)&1]
			half.put(v)
			half.used++
		}
	}
	// t's share of the directory is the run of entries that agree with h in its
	// first t.depth bits; the bit after them chooses the half.
	run := 1 << (x.depth - t.depth)
	first := 0
	if x.depth > 0 {
		first = int(h>>(64-x.depth)) &^ (run - 1)
	}
	for i := range run {
		x.dir[first+i] = halves[i*2/run]
	}
}

// put takes v into the first free place of its probe.
func (t *subTable) put(v slot) {
	mask := len(t.slots) - 1
	i := int(v.hash()) & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = v
}

// Each calls f for every key, in no order, until f returns false. key is valid
// during the call only; f must not change the index.
func (x *Index) Each(f func(key []byte, ref Ref) bool) {
	x.eachFrom(0, int(x.next), f)
}

// eachFrom visits the entries numbered [from, to).
func (x *Index) eachFrom(from, to int, f func(key []byte, ref Ref) bool) {
	for n := from; n < min(to, int(x.next)); n++ {
		e := x.entry(uint32(n))
		if e.key == 0 && e.size == 0 {
			continue // given back
		}
		if !f(x.keys.get(e.key), e.ref()) {
			return
		}
	}
}
