package partition

// valuePlaces is a hash table of the places of values in a stripe's ring. It holds no keys:
// they stand in the ring, at the places. Open addressing with linear probes, so that a
// search is one miss of the cache, and none but its own value is looked at, nearly always.
type valuePlaces struct {
	slots []placeSlot
	used  int
}

// placeSlot is a place modulo 4 GiB, below 31 bits of its key's hash and a bit that says
// that the slot is used.
type placeSlot uint64

const (
	placeUsed   placeSlot = 1 << 63
	firstPlaces           = 64 // slots; a power of two
)

func makePlaceSlot(h, place uint64) placeSlot {
	// The highest bits of the hash are the stripe's.
	return placeUsed | placeSlot(h>>28)<<32 | placeSlot(uint32(place))
}

// hash is the bits that a slot holds.
func (v placeSlot) hash() int { return int(v &^ placeUsed >> 32) }

// find calls is with the places of the keys that share the bits of h, until it is true;
// ok says that it was.
func (t *valuePlaces) find(h uint64, is func(place uint32) bool) (at int, ok bool) {
	if t.used == 0 {
		return 0, false
	}
	mask, want := len(t.slots)-1, makePlaceSlot(h, 0)
	for at = want.hash() & mask; t.slots[at] != 0; at = (at + 1) & mask {
		if v := t.slots[at]; v>>32 == want>>32 && is(uint32(v)) {
			return at, true
		}
	}
	return at, false
}

// add puts a place in, whose key has none.
func (t *valuePlaces) add(h, place uint64) {
	if 4*(t.used+1) > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]placeSlot, max(2*len(old), firstPlaces))
		for _, v := range old {
			if v != 0 {
				t.put(v)
			}
		}
	}
	t.put(makePlaceSlot(h, place))
	t.used++
}

// put takes v into the first free slot of its probe.
func (t *valuePlaces) put(v placeSlot) {
	mask := len(t.slots) - 1
	at := v.hash() & mask
	for t.slots[at] != 0 {
		at = (at + 1) & mask
	}
	t.slots[at] = v
}

// remove empties the slot at, and shifts back those whose probe passed over it.
func (t *valuePlaces) remove(at int) {
	mask := len(t.slots) - 1
	t.used--
	hole := at
	for i := (at + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		if home := t.slots[i].hash() & mask; (i-home)&mask >= (i-hole)&mask {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = 0
}
