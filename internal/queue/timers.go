package queue

// timer is one deadline that may be stale: it counts only if the item still has it.
type timer struct {
	at     Micros
	offset Offset
}

// timerHeap is a binary heap of deadlines, nearest first, and of equal ones the oldest
// record. Ready offsets, whose deadline is zero, come out of it in offset order.
type timerHeap []timer

func (h timerHeap) less(a, b timer) bool {
	return a.at < b.at || a.at == b.at && a.offset < b.offset
}

func (h *timerHeap) push(t timer) {
	*h = append(*h, t)
	s := *h
	for i := len(s) - 1; i > 0; {
		p := (i - 1) / 2
		if !h.less(s[i], s[p]) {
			return
		}
		s[i], s[p] = s[p], s[i]
		i = p
	}
}

func (h *timerHeap) pop() timer {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(s); c++ {
			if h.less(s[c], s[least]) {
				least = c
			}
		}
		if least == i {
			return top
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}

// pruneTimers drops the deadlines that no item has any more: each extension of a claim
// leaves one behind.
func (g *Group) pruneTimers() {
	old := g.timers
	g.timers = make(timerHeap, 0, g.InFlight())
	for _, t := range old {
		if it := g.find(t.offset); it != nil && it.timed && it.deadline == t.at && it.inFlight() {
			g.timers.push(t)
		}
	}
}
