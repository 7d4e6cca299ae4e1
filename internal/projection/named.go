package projection

import "github.com/felixlog/felix/storage/segment"

// namedPage is a piece of the set: so many records, a bit each.
const namedPage = 4096

// named is the set of the records that an index names. Compaction asks it what it may
// pass over, which is most of what it reads, without looking up the keys.
type named struct {
	pages map[segment.Offset]*namedBits
	// spare is a page without a bit, for the next: a log whose one key is written over and
	// over would make one for each record.
	spare *namedBits
	// shared: a record decided several keys. A bit cannot tell when the last of them
	// goes, so from then on every record may be named.
	shared bool
}

type namedBits struct {
	count int
	words [namedPage / 64]uint64
}

func (n *named) add(at segment.Offset) {
	if n.shared {
		return
	}
	p := n.pages[at/namedPage]
	if p == nil {
		if n.pages == nil {
			n.pages = map[segment.Offset]*namedBits{}
		}
		if p = n.spare; p == nil {
			p = new(namedBits)
		}
		n.spare = nil
		n.pages[at/namedPage] = p
	}
	word, bit := p.place(at)
	if *word&bit != 0 {
		n.shared, n.pages, n.spare = true, nil, nil
		return
	}
	*word |= bit
	p.count++
}

// remove takes out a record that was added.
func (n *named) remove(at segment.Offset) {
	p := n.pages[at/namedPage]
	if p == nil {
		return
	}
	word, bit := p.place(at)
	*word &^= bit
	if p.count--; p.count == 0 {
		delete(n.pages, at/namedPage)
		n.spare = p
	}
}

func (n *named) has(at segment.Offset) bool {
	if n.shared {
		return true
	}
	p := n.pages[at/namedPage]
	if p == nil {
		return false
	}
	word, bit := p.place(at)
	return *word&bit != 0
}

func (p *namedBits) place(at segment.Offset) (word *uint64, bit uint64) {
	return &p.words[at%namedPage/64], 1 << (at % 64)
}
