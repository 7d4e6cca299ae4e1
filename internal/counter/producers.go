package counter

// MaxProducers bounds the producers a shard remembers; the one that was quiet longest
// is forgotten first.
const MaxProducers = 4096

// windowSize is how many sequences of a producer are told apart. An older one is taken
// for a repetition.
const windowSize = 64

// window is what is known of a producer's sequences.
type window struct {
	next uint64 // one past the highest seen
	seen uint64 // bit i: next-1-i was seen
}

// has reports whether sequence was seen, or is too old to tell.
func (w window) has(sequence uint64) bool {
	if sequence >= w.next {
		return false
	}
	back := w.next - 1 - sequence
	return back >= windowSize || w.seen&(1<<back) != 0
}

// with is the window after sequence was seen.
func (w window) with(sequence uint64) window {
	if sequence >= w.next {
		if shift := sequence + 1 - w.next; shift >= windowSize {
			w.seen = 0
		} else {
			w.seen <<= shift
		}
		w.next = sequence + 1
	}
	if back := w.next - 1 - sequence; back < windowSize {
		w.seen |= 1 << back
	}
	return w
}
