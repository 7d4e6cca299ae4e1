package queue

// owner is a consumer that holds claims on one connection.
type owner struct {
	member string
	conn   uint64
}

// owners numbers the consumers that hold claims; a number is free again when the last
// claim under it ends. 0 is nobody.
type owners struct {
	list   []owner // number n is list[n-1]
	claims []int
	ids    map[owner]uint32
	free   []uint32
}

// take counts one more claim of the consumer and returns its number.
func (s *owners) take(member string, conn uint64) uint32 {
	if member == "" {
		return 0
	}
	o := owner{member, conn}
	id, ok := s.ids[o]
	if !ok {
		if n := len(s.free); n > 0 {
			id, s.free = s.free[n-1], s.free[:n-1]
			s.list[id-1] = o
		} else {
			s.list = append(s.list, o)
			s.claims = append(s.claims, 0)
			id = uint32(len(s.list))
		}
		if s.ids == nil {
			s.ids = map[owner]uint32{}
		}
		s.ids[o] = id
	}
	s.claims[id-1]++
	return id
}

// get is the consumer of a number that holds claims; nobody for 0.
func (s *owners) get(id uint32) owner {
	if id == 0 {
		return owner{}
	}
	return s.list[id-1]
}

// release ends one claim of a number.
func (s *owners) release(id uint32) {
	if id == 0 {
		return
	}
	if s.claims[id-1]--; s.claims[id-1] == 0 {
		delete(s.ids, s.list[id-1])
		s.list[id-1] = owner{}
		s.free = append(s.free, id)
	}
}

// elsewhere reports whether member holds claims on a connection other than conn.
func (s *owners) elsewhere(member string, conn uint64) bool {
	for o := range s.ids {
		if o.member == member && o.conn != conn {
			return true
		}
	}
	return false
}

// is reports whether number id is member on a connection other than conn.
func (s *owners) is(id uint32, member string, conn uint64) bool {
	return id != 0 && s.list[id-1].member == member && s.list[id-1].conn != conn
}
