package projection

// expiryHeap is a binary heap of the entries that have a deadline, nearest first.
// Each entry knows its place, so that a changed deadline moves it in place.
type expiryHeap struct{ entries []uint32 }

func (h *expiryHeap) memory() int64 { return int64(cap(h.entries)) * 4 }

func (x *Index) deadline(i int) Millis { return x.entry(x.heap.entries[i]).expires }

// setExpiry moves entry n to where its deadline belongs; 0 takes it out.
func (x *Index) setExpiry(n uint32, expires Millis) {
	e := x.entry(n)
	h := &x.heap
	switch {
	case expires == 0 && e.place != 0:
		h.remove(x, int(e.place-1))
	case expires != 0 && e.place == 0:
		h.entries = append(h.entries, n)
		e.place = uint32(len(h.entries))
		h.up(x, len(h.entries)-1)
	case expires != 0:
		i := int(e.place - 1)
		h.up(x, i)
		h.down(x, int(e.place-1))
	}
}

func (h *expiryHeap) swap(x *Index, i, j int) {
	h.entries[i], h.entries[j] = h.entries[j], h.entries[i]
	x.entry(h.entries[i]).place = uint32(i + 1)
	x.entry(h.entries[j]).place = uint32(j + 1)
}

func (h *expiryHeap) up(x *Index, i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if x.deadline(parent) <= x.deadline(i) {
			return
		}
		h.swap(x, i, parent)
		i = parent
	}
}

func (h *expiryHeap) down(x *Index, i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.entries); c++ {
			if x.deadline(c) < x.deadline(least) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(x, i, least)
		i = least
	}
}

func (h *expiryHeap) remove(x *Index, i int) {
	last := len(h.entries) - 1
	x.entry(h.entries[i]).place = 0
	if i != last {
		moved := h.entries[last]
		h.entries[i] = moved
		x.entry(moved).place = uint32(i + 1)
	}
	h.entries = h.entries[:last]
	if i < last {
		h.up(x, i)
		h.down(x, i)
	}
}

// NextExpiry returns the nearest deadline.
func (x *Index) NextExpiry() (Millis, bool) {
	if len(x.heap.entries) == 0 {
		return 0, false
	}
	return x.deadline(0), true
}

// Expired calls f for up to limit keys whose deadline is at or before now, in no
// particular order beyond that the nearest is among them. key is valid during the
// call only; f must not change the index.
func (x *Index) Expired(now Millis, limit int, f func(key []byte, ref Ref)) {
	// A heap's entries at or before now form a tree hanging from its root.
	var walk func(i int)
	walk = func(i int) {
		if limit <= 0 || i >= len(x.heap.entries) || x.deadline(i) > now {
			return
		}
		limit--
		e := x.entry(x.heap.entries[i])
		f(x.keys.get(e.key), e.ref())
		walk(2*i + 1)
		walk(2*i + 2)
	}
	walk(0)
}

// Nearest calls f for keys in the order of their deadlines, nearest first, until f
// returns false or limit keys were visited. key is valid during the call only; f must
// not change the index.
func (x *Index) Nearest(limit int, f func(key []byte, ref Ref) bool) {
	// The next in order is always a child of one already visited.
	front := []int{}
	if len(x.heap.entries) > 0 {
		front = append(front, 0)
	}
	for ; limit > 0 && len(front) > 0; limit-- {
		least := 0
		for i := range front {
			if x.deadline(front[i]) < x.deadline(front[least]) {
				least = i
			}
		}
		at := front[least]
		e := x.entry(x.heap.entries[at])
		if !f(x.keys.get(e.key), e.ref()) {
			return
		}
		front = append(front[:least], front[least+1:]...)
		for c := 2*at + 1; c <= 2*at+2 && c < len(x.heap.entries); c++ {
			front = append(front, c)
		}
	}
}
