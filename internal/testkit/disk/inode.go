package disk

import (
	"math/rand/v2"
	"slices"
)

// SectorSize is the unit a power cut decides about, in bytes.
const SectorSize = 512

// blockSize is the unit of allocation, and of what a truncate rewrites around
// its cut.
const blockSize = 4096

// inode is a file or directory, apart from its names.
type inode struct {
	dir     bool
	links   int               // current names; 0 once removed
	entries map[string]*inode // of a directory, as processes see it
	stored  map[string]*inode // of a directory, as the device has it

	data     []byte            // of a file, as processes see it
	device   []byte            // of a file, as last flushed
	lengths  []int64           // lengths taken since the last flush, in order
	sectors  map[int64]*sector // what differs, or may differ, from device
	reserved int64             // end of what Allocate reserved
}

// sector is one sector that changed since it was last flushed.
type sector struct {
	versions []version
	dirty    bool // false: a failed flush gave it up
	firm     int  // so many of its first bytes were on the device when it first changed
}

// version is the contents of a sector after one write or cut.
type version struct {
	bytes   []byte // SectorSize
	lengths int    // len(inode.lengths) when it came about
	cut     bool   // made by a shrinking Truncate
	near    bool   // of a cut: in the block the cut goes through
}

func newDir() *inode {
	return &inode{dir: true, entries: map[string]*inode{}, stored: map[string]*inode{}}
}

func newFile() *inode { return &inode{sectors: map[int64]*sector{}} }

// blocks is the room the file takes, in bytes.
func (f *inode) blocks() int64 {
	return roundUp(max(int64(len(f.data)), f.reserved))
}

func roundUp(n int64) int64 { return (n + blockSize - 1) / blockSize * blockSize }

func (f *inode) write(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	end := off + int64(len(p))
	f.grow(end)
	copy(f.data[off:end], p)
	for i := off / SectorSize; i*SectorSize < end; i++ {
		f.touch(i, version{})
	}
}

// grow lengthens the file to size with zeros; a smaller size changes nothing.
func (f *inode) grow(size int64) {
	if size <= int64(len(f.data)) {
		return
	}
	f.data = resize(f.data, size)
	f.lengths = append(f.lengths, size)
}

// truncate sets the length.
func (f *inode) truncate(size int64) {
	old := int64(len(f.data))
	f.reserved = min(f.reserved, size)
	if size >= old {
		f.grow(size)
		return
	}
	f.data = f.data[:size]
	f.lengths = append(f.lengths, size)
	for i := size / SectorSize; i*SectorSize < old; i++ {
		f.touch(i, version{cut: true, near: i*SectorSize < roundUp(size)})
	}
}

// touch notes that sector i has changed; v says how.
func (f *inode) touch(i int64, v version) {
	s := f.sectors[i]
	if s == nil {
		s = &sector{firm: int(min(max(int64(len(f.device))-i*SectorSize, 0), SectorSize))}
		f.sectors[i] = s
	}
	v.bytes = sectorOf(f.data, i)
	v.lengths = len(f.lengths)
	s.versions = append(s.versions, v)
	s.dirty = true
}

// flush makes the device equal to the cache, sectors given up excepted.
func (f *inode) flush() {
	floor := f.floor(len(f.lengths))
	f.device = resize(f.device[:min(floor, int64(len(f.device)))], int64(len(f.data)))
	for i, s := range f.sectors {
		if s.dirty {
			if start := i * SectorSize; start < int64(len(f.device)) {
				copy(f.device[start:min(start+SectorSize, int64(len(f.device)))], f.data[start:])
			}
			delete(f.sectors, i)
			continue
		}
		s.firm = int(min(int64(s.firm), max(floor-i*SectorSize, 0)))
		last := -1
		for n := range s.versions {
			if s.versions[n].cut {
				last = n
			}
			s.versions[n].lengths, s.versions[n].cut = 0, false
		}
		s.versions = s.versions[last+1:]
		if len(s.versions) == 0 {
			delete(f.sectors, i)
		}
	}
	f.lengths = nil
}

// giveUp is a flush that fails: what was dirty counts as clean from now on.
func (f *inode) giveUp() {
	for _, s := range f.sectors {
		s.dirty = false
	}
}

// evict lets the cache forget the sectors a failed flush gave up, so that what
// the device has of them is what processes see from now on.
func (f *inode) evict(r *rand.Rand) {
	for _, i := range f.changed() {
		s := f.sectors[i]
		if s.dirty {
			continue
		}
		content := f.pick(i, s, len(f.lengths), sectorAny, r)
		start := i * SectorSize
		if start < int64(len(f.data)) {
			copy(f.data[start:], content)
		}
		if start+SectorSize <= int64(len(f.device)) {
			copy(f.device[start:], content)
			delete(f.sectors, i)
			continue
		}
		// Past the flushed length: the contents are on the device, the length that
		// makes them part of the file is not.
		s.versions = []version{{bytes: content, lengths: len(f.lengths)}}
	}
}

// floor is the least length among the flushed one and the first m taken since:
// bytes below it have been part of the file throughout.
func (f *inode) floor(m int) int64 {
	least := int64(len(f.device))
	for _, n := range f.lengths[:m] {
		least = min(least, n)
	}
	return least
}

// The ways a power cut decides about one sector.
type sectorChoice uint8

const (
	sectorOld sectorChoice = iota
	sectorNew
	sectorAny
	sectorGarbage
)

// pick returns what the device has of sector i if the first m lengths reached it.
func (f *inode) pick(i int64, s *sector, m int, how sectorChoice, r *rand.Rand) []byte {
	// Candidate 0 is what was last flushed, candidate n is version n-1. A cut
	// that reached the device rules out what was before it; one that did not rules
	// out itself and what came after, except in the block it goes through.
	low, high := 0, len(s.versions)
	for n, v := range s.versions {
		if !v.cut {
			continue
		}
		if v.lengths <= m {
			low = n + 1
		} else if !v.near {
			high = n
			break
		}
	}
	choice := low
	switch how {
	case sectorNew:
		choice = high
	case sectorAny, sectorGarbage:
		choice = low + r.IntN(high-low+1)
	}
	var content []byte
	if choice == 0 {
		content = sectorOf(f.device, i)
	} else {
		content = slices.Clone(s.versions[choice-1].bytes)
	}
	if how == sectorGarbage {
		firm := int(min(int64(s.firm), max(f.floor(m)-i*SectorSize, 0)))
		for n := firm; n < len(content); n++ {
			content[n] = byte(r.Uint32())
		}
	}
	return content
}

// changed lists the changed sectors in order.
func (f *inode) changed() []int64 {
	list := make([]int64, 0, len(f.sectors))
	for i := range f.sectors {
		list = append(list, i)
	}
	slices.Sort(list)
	return list
}

// powerCut leaves in cache and device alike what a power cut leaves of f.
func (f *inode) powerCut(r *rand.Rand) {
	sectors := f.changed()
	m := r.IntN(len(f.lengths) + 1)
	front := 0
	if len(sectors) > 0 {
		front = r.IntN(len(sectors) + 1)
	}
	mode := r.IntN(6)
	switch mode {
	case 0, 4:
		m = len(f.lengths)
	case 1:
		m = 0
	}
	size := int64(len(f.device))
	if m > 0 {
		size = f.lengths[m-1]
	}
	after := resize(slices.Clone(f.device[:min(f.floor(m), int64(len(f.device)))]), size)
	for n, i := range sectors {
		how := sectorAny
		switch mode {
		case 0: // everything got there
			how = sectorNew
		case 1, 4: // nothing did, or the length alone
			how = sectorOld
		case 2: // anything, garbage included
			if r.IntN(4) == 0 {
				how = sectorGarbage
			}
		case 3: // written from the front, and stopped
			how = sectorOld
			if n < front {
				how = sectorNew
			}
		}
		content := f.pick(i, f.sectors[i], m, how, r)
		if start := i * SectorSize; start < size {
			copy(after[start:min(start+SectorSize, size)], content)
		}
	}
	f.data, f.device = after, slices.Clone(after)
	f.lengths, f.sectors = nil, map[int64]*sector{}
	f.reserved = min(f.reserved, roundUp(size))
}

// sectorOf copies sector i out of data, zeros past the end.
func sectorOf(data []byte, i int64) []byte {
	s := make([]byte, SectorSize)
	if start := i * SectorSize; start < int64(len(data)) {
		copy(s, data[start:])
	}
	return s
}

// resize sets the length of data, zeros in what is new.
func resize(data []byte, size int64) []byte {
	old := int64(len(data))
	if size <= old {
		return data[:size]
	}
	data = slices.Grow(data, int(size-old))[:size]
	clear(data[old:])
	return data
}
