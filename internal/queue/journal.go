package queue

// journal is what calls on the groups of a shard found before they changed it, of what the
// log does not keep: claims, delays, who holds an exclusive group, and which records were
// never handed out. With it a shard that was read from the log again goes on where its
// last confirmed call left it (Shard.Resume), not as after a restart.
//
// It holds what is not confirmed, in the order of the calls. A nil journal keeps nothing.
type journal struct {
	items  []itemBefore
	groups []groupBefore
	begin  Mark // of items[0] and groups[0]
}

// Mark is a moment between two calls on the groups of a shard.
type Mark struct{ items, groups int64 }

// itemBefore is an item, and who held it.
type itemBefore struct {
	group  *Group
	offset Offset
	item   item
	owner  owner
}

// groupBefore is what the log does not keep of a group as a whole.
type groupBefore struct {
	group     *Group
	next      Offset
	holder    string
	heldUntil Micros
}

// noteItem is called before the state, the deadline or the owner of an item changes.
func (g *Group) noteItem(o Offset, it *item) {
	if j := g.journal; j != nil {
		j.items = append(j.items, itemBefore{g, o, *it, g.owners.get(it.owner)})
	}
}

// note is called before next or the holder changes.
func (g *Group) note() {
	if j := g.journal; j != nil {
		j.groups = append(j.groups, g.before())
	}
}

func (g *Group) before() groupBefore { return groupBefore{g, g.next, g.holder, g.heldUntil} }

// noteAll is called before every claim and delay is void.
func (g *Group) noteAll() {
	g.note()
	g.each(g.noteItem)
}

// Mark is the moment after the calls so far.
func (s *Shard) Mark() Mark {
	j := s.journal
	return Mark{j.begin.items + int64(len(j.items)), j.begin.groups + int64(len(j.groups))}
}

// Confirm says that the calls before m stand, whatever happens to those after it.
func (s *Shard) Confirm(m Mark) {
	j := s.journal
	j.items = dropFirst(j.items, m.items-j.begin.items)
	j.groups = dropFirst(j.groups, m.groups-j.begin.groups)
	j.begin = m
}

// dropFirst drops the first n of list and keeps its room for those that follow, unless it
// was needed once only.
func dropFirst[T any](list []T, n int64) []T {
	const keep = 4 * MaxPollRecords
	rest := list[:copy(list, list[n:])]
	if len(rest) == 0 && cap(list) > keep {
		return nil
	}
	clear(list[len(rest):])
	return rest
}

// Resume gives s, just read from the log, what old had beside it when the last call that
// was confirmed had ended. Of an item that the log says more of than old did then (it is
// settled, or was handed out once more) the log is right.
func (s *Shard) Resume(old *Shard) {
	// What was noted first of a place is what stood at that call; what was not noted has not
	// changed since.
	r := resumption{s, map[string]bool{}, map[place]bool{}}
	for _, b := range old.journal.groups {
		r.group(b)
	}
	for _, b := range old.journal.items {
		r.item(b)
	}
	old.Each(func(g *Group) {
		r.group(g.before())
		g.each(func(o Offset, it *item) {
			r.item(itemBefore{g, o, *it, g.owners.get(it.owner)})
		})
	})
	s.Confirm(s.Mark())
}

// resumption is a Resume under way: the first that it is told of a place counts.
type resumption struct {
	to     *Shard
	groups map[string]bool
	items  map[place]bool
}

type place struct {
	group  string
	offset Offset
}

func (r *resumption) group(b groupBefore) {
	name := b.group.name
	if g := r.to.groups[name]; g != nil && !r.groups[name] {
		r.groups[name] = true
		g.rewind(b.next)
		g.holder, g.heldUntil = b.holder, b.heldUntil
	}
}

func (r *resumption) item(b itemBefore) {
	at := place{b.group.name, b.offset}
	if g := r.to.groups[at.group]; g != nil && !r.items[at] {
		r.items[at] = true
		g.resume(b)
	}
}

// rewind makes the records from next on such as were never handed out. What is read from
// the log is ahead: deliveries are provided for before they happen.
func (g *Group) rewind(next Offset) {
	next = max(next, g.position)
	for o := next; o < g.next; o++ {
		if _, it, _ := g.win.peek(o); it != nil && it.state != settled {
			g.leave(o, it)
			*it = item{}
		}
	}
	g.next = min(g.next, next)
}

// resume puts an item in the state it was in, if it has had the same deliveries.
func (g *Group) resume(b itemBefore) {
	it := g.find(b.offset)
	if it == nil || it.state == fresh || !g.sameDeliveries(b.offset, it.attempts, b.item.attempts) {
		return
	}
	g.move(b.offset, it, b.item.state)
	it.attempts = b.item.attempts
	it.deadline, it.timed = b.item.deadline, b.item.timed
	it.owner = g.owners.take(b.owner.member, b.owner.conn)
	if it.inFlight() {
		g.timers.push(timer{it.deadline, b.offset})
	} else {
		g.owed.push(timer{0, b.offset})
	}
}

// sameDeliveries says whether the log can mean had by its count of o's deliveries. It counts
// those beyond the first: of a record in the window, one that was given back (Unclaim) is
// like none, but for redriven ones.
func (g *Group) sameDeliveries(o Offset, logged, had uint16) bool {
	return logged == had || logged == 1 && had == 0 && g.again[o] == nil
}
