package sim

import (
	"fmt"
	"time"

	"github.com/felixlog/felix/internal/replica"
)

// network carries encoded messages between nodes.
type network struct {
	world *world
	// cut[from][to]: messages that way are lost.
	cut   [8][8]bool
	loss  float64
	dup   float64
	delay time.Duration
}

func (t *network) heal() {
	t.cut = [8][8]bool{}
	t.loss, t.dup, t.delay = 0, 0, 2*time.Millisecond
}

// lateTime bounds how much later messages to the first node of a lopsided network come.
const lateTime = 300 * time.Millisecond

func (t *network) send(from *node, m *replica.Message) {
	w := t.world
	to := w.node(m.To)
	if to == nil {
		return
	}
	bytes := m.Append(nil)
	if len(bytes) != m.Size() {
		w.fail("codec", "%v takes %d bytes and says %d", m.Type, len(bytes), m.Size())
	}
	lost := t.cut[from.index][to.index] || w.chance(t.loss)
	w.trace(from, "send", func() string { return describe(m, lost) }, uint64(m.Type), uint64(to.index), m.Round, uint64(m.Match))
	if lost {
		return
	}
	copies := 1
	if w.chance(t.dup) {
		copies = 2
	}
	for range copies {
		d := w.between(100*time.Microsecond, t.delay)
		if w.chance(0.02) {
			d *= 10
		}
		if w.shape.Lopsided && to.index == 0 && !w.heal {
			d += w.between(0, lateTime)
		}
		w.after(d, func() { t.deliver(from, to, bytes) })
	}
}

// deliver hands a message to the process the node is now, whichever that is.
func (t *network) deliver(from, to *node, bytes []byte) {
	w := t.world
	if !to.alive || t.cut[from.index][to.index] {
		return
	}
	if w.now < to.suspended {
		w.after(to.suspended-w.now, func() { t.deliver(from, to, bytes) })
		return
	}
	var m replica.Message
	if err := m.Decode(bytes); err != nil {
		w.fail("codec", "decode: %v", err)
		return
	}
	m.From, m.To = from.id, to.id
	w.steps++
	to.receive(&m)
}

func describe(m *replica.Message, lost bool) string {
	s := fmt.Sprintf("-> %s %v gen %d", m.To, m.Type, m.Term.Generation)
	switch m.Type {
	case replica.Append:
		s += fmt.Sprintf(" log %d prev %d/g%d/%08x bytes %d mark %d head %d", m.Log, m.Prev.Next, m.Prev.Generation, m.Prev.Checksum, len(m.Bytes), m.Mark, m.Head)
	case replica.Appended:
		s += fmt.Sprintf(" log %d prev %d match %d tail %d %v at g%d start %d", m.Log, m.Prev.Next, m.Match, m.Tail, m.Refused, m.At, m.Start)
	case replica.FenceAnswer:
		s += fmt.Sprintf(" round %d %v forgetful %t votes %+v", m.Round, m.Refused, m.Forgetful, m.Votes)
	case replica.Pull, replica.Pulled, replica.Reset:
		s += fmt.Sprintf(" log %d at %d prev %d/g%d bytes %d %v", m.Log, m.Match, m.Prev.Next, m.Prev.Generation, len(m.Bytes), m.Refused)
	case replica.Beat, replica.BeatAnswer:
		s += fmt.Sprintf(" round %d lease %t %v %v", m.Round, m.Lease, m.Marks, m.Refused)
	}
	if lost {
		s += " LOST"
	}
	return s
}
