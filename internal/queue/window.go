package queue

// state is what an offset in the window is.
type state uint8

const (
	fresh   state = iota // not handed out by this core, not settled
	ready                // owed: handed out before and open again
	delayed              // owed from its deadline on
	claimed              // handed out until its deadline
	settled              // acked, dead, lost or skipped
)

// item is one offset of the window. 16 bytes.
type item struct {
	deadline Micros // of a claim or a delay
	owner    uint32 // who holds the claim; 0 = nobody known
	attempts uint16 // deliveries so far; saturates
	state    state
	timed    bool // an entry of the deadline heap is good for it
}

// inFlight reports whether the item is claimed or delayed.
func (it *item) inFlight() bool { return it.state == claimed || it.state == delayed }

const blockSize = 256 // offsets; also the unit that is written

// block holds the items of blockSize consecutive offsets.
type block struct {
	items  [blockSize]item
	open   int  // items not settled
	dirty  bool // changed since it was last encoded
	stored bool // the log has an entry of it
}

// window is the offsets from the block of the position on. A block all of whose items
// are settled is a nil in it, so that one stuck record costs little however much is
// settled behind it.
type window struct {
	first  uint64 // number of blocks[0]
	blocks []*block
	// done marks the nils that the log has an entry of.
	done []blockMark
}

// blockMark is what is left of a block when all of it is settled.
type blockMark struct{ dirty, stored bool }

func (w *window) reset(at Offset) {
	*w = window{first: uint64(at) / blockSize}
}

// at returns the item of offset, which must not be below the window; nil if its whole
// block is settled. The blocks up to it are made.
func (w *window) at(offset Offset) (*block, *item) {
	n := uint64(offset)/blockSize - w.first
	for uint64(len(w.blocks)) <= n {
		w.blocks = append(w.blocks, &block{open: blockSize})
		w.done = append(w.done, blockMark{})
	}
	b := w.blocks[n]
	if b == nil {
		return nil, nil
	}
	return b, &b.items[uint64(offset)%blockSize]
}

// peek is at without making blocks: ok false for an offset no block was made for.
func (w *window) peek(offset Offset) (b *block, it *item, ok bool) {
	n := uint64(offset)/blockSize - w.first
	if n >= uint64(len(w.blocks)) {
		return nil, nil, false
	}
	if b = w.blocks[n]; b == nil {
		return nil, nil, true
	}
	return b, &b.items[uint64(offset)%blockSize], true
}

// settle marks the item settled and lets its block go when it was the last.
func (w *window) settle(offset Offset) {
	b, it := w.at(offset)
	if b == nil || it.state == settled {
		return
	}
	*it = item{state: settled}
	b.open--
	b.dirty = true
	if b.open == 0 {
		n := uint64(offset)/blockSize - w.first
		w.blocks[n] = nil
		w.done[n] = blockMark{dirty: true, stored: b.stored}
	}
}

// advance returns the first offset at or above from, below limit, that is not settled,
// or limit.
func (w *window) advance(from, limit Offset) Offset {
	for from < limit {
		b, it, ok := w.peek(from)
		switch {
		case !ok:
			return from
		case b == nil:
			from = min(limit, (from/blockSize+1)*blockSize)
		case it.state != settled:
			return from
		default:
			from++
		}
	}
	return limit
}

// drop forgets the blocks wholly below position and calls stored for those the log has
// an entry of.
func (w *window) drop(position Offset, stored func(n uint64)) {
	keep := uint64(position) / blockSize
	for len(w.blocks) > 0 && w.first < keep {
		if b := w.blocks[0]; b != nil && b.stored || b == nil && w.done[0].stored {
			stored(w.first)
		}
		w.blocks[0] = nil
		w.blocks, w.done = w.blocks[1:], w.done[1:]
		w.first++
	}
	if len(w.blocks) == 0 {
		w.first, w.blocks, w.done = keep, nil, nil
	}
}
