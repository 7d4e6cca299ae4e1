package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// groupHistory is what the publishers and consumers of one group know. Records are known
// by their payloads, each of which is published once: an offset may be given again to
// another record where a power cut is allowed to take the first.
type groupHistory struct {
	t      *testing.T
	label  string
	rnd    *rand.Rand
	strict bool // what was answered has to last

	d      *disk.Strict
	p      *Partition
	groups *Groups
	clock  atomic.Int64
	opts   func() (Options, GroupsOptions)

	published int
	idle      bool // this life has publishers only
	// at is what the stream holds, as far as publishers were told.
	at map[storage.Offset]string
	// settled, discarded, letters (given up on): answered. asked: one of these whose answer
	// did not come.
	settled, discarded, letters, asked map[string]bool
	attempts                           map[string]uint32
	redriven                           map[string]bool  // attempts may begin again
	passed                             map[string]bool  // below where the group was set to
	until                              map[string]int64 // when an extended claim ends, of this life
	// excused: a seek that a power cut may have taken back left it open whether the group
	// comes by.
	excused          map[string]bool
	seeks            bool // are drawn in this history
	extended, sought int
	held             []GroupRecord
}

const groupAttempts = 3

func (h *groupHistory) open() error {
	o, g := h.opts()
	o.Groups = &GroupHome{Dir: "/shard/groups", GroupsOptions: g}
	if h.rnd.IntN(2) == 0 {
		o.Groups.HoldBytes = 1 << 20
	}
	h.idle = h.rnd.IntN(3) == 0
	var err error
	if h.p, err = Open(deadline(h.t), "/shard", o); err != nil {
		return err
	}
	h.held, h.until = nil, map[string]int64{} // claims do not outlive the process
	h.groups, err = h.p.Groups(deadline(h.t))
	return err
}

func (h *groupHistory) do(op GroupOp) error {
	return h.groups.Do(deadline(h.t), "g", true, op)
}

// step does one thing. An error ends the life: the power is gone.
func (h *groupHistory) step() error {
	switch n := h.rnd.IntN(23); {
	case n < 5 || h.idle:
		var batch []string
		for range 1 + h.rnd.IntN(8) {
			batch = append(batch, fmt.Sprintf("record %d %s", h.published, strings.Repeat("x", h.rnd.IntN(200))))
			h.published++
		}
		s := send(h.p, &Publish{Payloads: payloads(batch...)})
		h.p.Drive(true)
		<-s.answered
		if s.Err != nil {
			return s.Err
		}
		for i, v := range batch {
			h.at[s.First+storage.Offset(i)] = v
		}
	case n < 10:
		return h.poll(1 + h.rnd.IntN(12))
	case n < 17 && len(h.held) > 0:
		i := h.rnd.IntN(len(h.held))
		r := h.held[i]
		h.held = append(h.held[:i], h.held[i+1:]...)
		return h.settle(r, n)
	case n == 17:
		h.clock.Add(h.rnd.Int64N(8000))
	case n == 18:
		return h.operate()
	case n == 19:
		if _, err := h.groups.Compact(deadline(h.t)); err != nil && !errors.Is(err, ErrCompacting) {
			return err
		}
		return h.trim()
	case n < 22 && len(h.held) > 0:
		return h.extend(h.held[h.rnd.IntN(len(h.held))])
	case n == 22 && h.seeks:
		return h.seek()
	}
	return nil
}

// extend moves the end of a claim that stands, further away or nearer.
func (h *groupHistory) extend(r GroupRecord) error {
	by := time.Duration(1+h.rnd.IntN(20)) * time.Second
	var stands time.Duration
	err := h.do(func(now segment.Micros, g *queue.Group, _, tail storage.Offset) (err error) {
		stands, err = g.Extend(now, r.Offset, r.Attempts, by, tail)
		return err
	})
	if errors.Is(err, queue.ErrStale) {
		return nil
	}
	if err == nil {
		require.Equal(h.t, by, stands, h.label)
		h.until[string(r.Payload)] = h.clock.Load() + by.Milliseconds()
		h.extended++
	}
	return err
}

// seek sets the group to some offset: what is at or above it begins anew, what is below is
// passed, but for dead letters, and no claim stands. A seek without an answer leaves
// nothing certain of the records that are there.
func (h *groupHistory) seek() error {
	var to storage.Offset
	err := h.do(func(_ segment.Micros, g *queue.Group, head, tail storage.Offset) error {
		to = head + storage.Offset(h.rnd.Int64N(int64(tail-head)+1))
		moved, err := g.Seek(to, head, tail, false)
		require.True(h.t, moved || err != nil, h.label)
		return err
	})
	h.held, h.until = nil, map[string]int64{}
	for o, v := range h.at {
		if delete(h.asked, v); err != nil || !h.strict {
			h.excused[v] = true
		}
		h.passed[v] = err == nil && o < to && !h.letters[v]
		if err != nil || o >= to {
			delete(h.settled, v)
			delete(h.discarded, v)
			delete(h.letters, v)
			delete(h.attempts, v)
		}
		delete(h.redriven, v) // void, too
	}
	if err == nil {
		h.sought++
	}
	return err
}

// poll takes records and checks that none of them is one it may not get.
func (h *groupHistory) poll(n int) error {
	records, err := pollOf(deadline(h.t), h.groups, PollCall{Group: "g", Max: n})
	if err != nil {
		return err
	}
	for _, r := range records {
		h.delivered(r)
	}
	h.held = append(h.held, records...)
	return nil
}

func (h *groupHistory) delivered(r GroupRecord) {
	v := string(r.Payload)
	if want, ok := h.at[r.Offset]; ok {
		require.Equal(h.t, want, v, "%s: record %d", h.label, r.Offset)
	}
	require.LessOrEqual(h.t, r.Attempts, uint32(groupAttempts), "%s: record %d", h.label, r.Offset)
	require.GreaterOrEqual(h.t, h.clock.Load(), h.until[v], "%s: record %d is claimed until then", h.label, r.Offset)
	delete(h.until, v)
	if !h.strict {
		return
	}
	if h.redriven[v] {
		delete(h.passed, v) // it is the group's again
	}
	require.False(h.t, h.passed[v], "%s: record %d is below where the group was set to", h.label, r.Offset)
	require.False(h.t, h.settled[v], "%s: record %d was acked and is delivered", h.label, r.Offset)
	require.False(h.t, h.discarded[v], "%s: record %d was discarded and is delivered", h.label, r.Offset)
	require.False(h.t, h.letters[v], "%s: record %d is a dead letter and is delivered", h.label, r.Offset)
	if !h.redriven[v] {
		require.Greater(h.t, r.Attempts, h.attempts[v], "%s: attempts of record %d", h.label, r.Offset)
	}
	delete(h.redriven, v)
	h.attempts[v] = r.Attempts
}

// settle ends a delivery in some way. One that is stale, because its time is up, is no
// error.
func (h *groupHistory) settle(r GroupRecord, how int) error {
	v := string(r.Payload)
	delete(h.until, v)
	var err error
	switch {
	case how < 13:
		h.asked[v] = true
		if err = h.do(ackOp(r.Offset)); err == nil {
			h.settled[v] = true
		}
	case how < 16:
		err = h.do(func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
			return g.Nack(now, queue.NackRequest{Offset: r.Offset, Attempts: r.Attempts, HasDelay: true, Delay: time.Duration(h.rnd.IntN(3)) * time.Second, Tail: tail})
		})
	default:
		h.asked[v] = true
		if err = h.do(func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
			return g.GiveUp(now, r.Offset, tail)
		}); err == nil {
			h.letters[v] = true
		}
	}
	if err == nil || errors.Is(err, queue.ErrStale) {
		delete(h.asked, v)
		return nil
	}
	return err
}

// operate does what an operator does with the dead letters.
func (h *groupHistory) operate() error {
	letters, _, err := h.groups.Letters(deadline(h.t), "g", 0, 1000)
	if err != nil {
		return err
	}
	for _, l := range letters {
		v := h.letter(l)
		delete(h.letters, v)
		if h.rnd.IntN(2) == 0 {
			h.redriven[v] = true
			err = h.do(func(_ segment.Micros, g *queue.Group, _, _ storage.Offset) error { return g.Redrive(l.Offset) })
		} else {
			h.asked[v] = true
			if err = h.do(func(_ segment.Micros, g *queue.Group, _, _ storage.Offset) error { g.Discard(l.Offset); return nil }); err == nil {
				h.discarded[v] = true
				delete(h.asked, v)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// letter checks a dead letter: whatever became of its segment, its payload is there. One
// that was settled since, and whose settling a power cut was allowed to take, may have
// let its record go meanwhile.
func (h *groupHistory) letter(l Letter) string {
	v, was := string(l.Payload), h.at[l.Offset]
	if v == "" && !h.strict && (h.settled[was] || h.discarded[was] || h.asked[was] || h.excused[was]) {
		return was
	}
	require.NotEmpty(h.t, v, "%s: dead letter %d has lost its payload", h.label, l.Offset)
	if want, ok := h.at[l.Offset]; ok {
		require.Equal(h.t, want, v, "%s: dead letter %d", h.label, l.Offset)
	}
	return v
}

// trim removes from the stream's head what retention may.
func (h *groupHistory) trim() error {
	segs := h.p.Log().Segments()
	if len(segs) < 2 {
		return nil
	}
	limit := min(h.p.retentionLimit(), segs[h.rnd.IntN(len(segs)-1)].Next)
	_, err := h.p.Log().TrimHead(deadline(h.t), limit)
	if err != nil {
		// Gone for who reads from then on, a group too, which counts what it had not
		// settled as lost; the files may be there yet in the next life.
		for o, v := range h.at {
			h.excused[v] = h.excused[v] || o < limit
		}
	}
	return err
}

// end ends the life, by a power cut or a kill, and begins the next.
func (h *groupHistory) end(power bool) {
	dying := h.d
	if power {
		h.d = h.d.Crash()
	} else {
		h.d = h.d.Kill()
	}
	closeAnyhow(h.p, dying)
	require.NoError(h.t, h.open(), h.label)
	// What the stream no longer holds is not held against the group.
	have := map[storage.Offset]string{}
	var page ReadPage
	for at := h.p.Log().Head(); at < h.p.Positions().Readable; at = page.Next {
		require.NoError(h.t, h.p.Read(deadline(h.t), ReadRequest{From: at}, &page))
		for _, r := range page.Records {
			have[r.Offset] = string(r.Payload)
		}
	}
	for o, v := range h.at {
		if have[o] != v && o >= h.p.Log().Head() {
			require.False(h.t, h.strict, "%s: record %d is gone", h.label, o)
			delete(h.at, o)
		}
	}
	for o, v := range have {
		h.at[o] = v
	}
	if !h.idle {
		require.NoError(h.t, h.books(), h.label)
	}
}

// books checks that every record is in one state. An error is of asking for it.
func (h *groupHistory) books() error {
	return h.do(func(now segment.Micros, g *queue.Group, head, tail storage.Offset) error {
		require.NoError(h.t, g.Stats(now, head, tail).Check(), h.label)
		return nil
	})
}

// drain delivers and acks all that is left, and finds each record of the stream: acked at
// some time, given up on, or delivered now.
func (h *groupHistory) drain() {
	seen := map[string]bool{}
	head := h.p.Log().Head()
	for empty := 0; empty < 3; {
		h.clock.Add(60_000)
		records, err := pollOf(deadline(h.t), h.groups, PollCall{Group: "g", Max: 1000})
		require.NoError(h.t, err, h.label)
		if len(records) == 0 {
			empty++
		}
		for _, r := range records {
			h.delivered(r)
			seen[string(r.Payload)] = true
			require.NoError(h.t, h.do(ackOp(r.Offset)), h.label)
		}
	}
	letters, _, err := h.groups.Letters(deadline(h.t), "g", 0, 100_000)
	require.NoError(h.t, err, h.label)
	for _, l := range letters {
		seen[h.letter(l)] = true
	}
	for o, v := range h.at {
		if o >= head && !seen[v] && !h.passed[v] && !h.excused[v] && !h.settled[v] && !h.asked[v] && !h.discarded[v] {
			var st queue.Stats
			require.NoError(h.t, h.do(func(now segment.Micros, g *queue.Group, head, tail storage.Offset) error {
				st = g.Stats(now, head, tail)
				return nil
			}))
			h.t.Fatalf("%s: record %d was never settled and is not delivered: head %d, %+v", h.label, o, head, st)
		}
	}
	require.NoError(h.t, h.books(), h.label)
}

// TestGroupsAcrossCrashes lets machine or process die at any moment of a group's life, in
// every fsync mode. Where the mode says that what was answered lasts, it does: what was
// acked, given up on or discarded does not come again, attempts only rise, each record
// below the tail is in one state. Where a power cut may take what was answered, every
// record that is left is delivered all the same, at most as often as allowed after the
// last thing that lasted.
func TestGroupsAcrossCrashes(t *testing.T) {
	extended, sought := 0, 0
	for seed := range seeds(60) {
		power := seed%2 == 0
		mode := []storage.FsyncMode{storage.OnCommit, storage.None, storage.Periodic}[seed/2%3]
		h := &groupHistory{
			t: t, label: fmt.Sprintf("seed %d, %v, power %v", seed, mode, power), rnd: rand.New(rand.NewPCG(uint64(seed), 7)),
			strict: !power || mode == storage.OnCommit, d: disk.NewStrict(uint64(seed), disk.Options{}),
			at: map[storage.Offset]string{}, settled: map[string]bool{}, discarded: map[string]bool{}, asked: map[string]bool{},
			letters: map[string]bool{}, attempts: map[string]uint32{}, redriven: map[string]bool{}, passed: map[string]bool{}, excused: map[string]bool{}, seeks: seed/6%2 == 0,
		}
		h.clock.Store(1_000_000)
		h.opts = func() (Options, GroupsOptions) {
			so := storage.Options{FS: h.d, Fsync: mode, SegmentBytes: storage.MinSegmentBytes, Restarted: power}
			return Options{Name: "t/n/s/0", Storage: so}, GroupsOptions{
				Storage: so, Defaults: queue.Config{Visibility: 5 * time.Second, MaxAttempts: groupAttempts},
				Now:     func() time.Time { return time.UnixMilli(h.clock.Load()) },
				OnError: func(string, string, error) {}, // the power goes in the background too
			}
		}
		require.NoError(t, h.d.MkdirAll("/shard"))
		require.NoError(t, h.d.SyncDir("/"))
		require.NoError(t, h.open())
		for range 3 {
			h.d.StopAfter(h.rnd.IntN(250))
			for range 80 {
				err := h.step()
				if err == nil && !h.idle {
					err = h.books()
				}
				if err != nil {
					require.True(t, h.d.Off(), "%s: %v", h.label, err)
					break
				}
			}
			h.end(power)
		}
		h.drain()
		require.NoError(t, h.p.Close(context.Background()))
		extended, sought = extended+h.extended, sought+h.sought
	}
	require.Greater(t, extended, 10)
	require.Greater(t, sought, 10)
}

// TestAGroupPastTheEndOfItsStreamIsSetBackForGood cuts the power where the groups' log has
// been flushed and the stream's has not. Nobody asks the group for anything until the
// stream has grown past where the group was, and the process dies: what was published
// meanwhile is delivered.
func TestAGroupPastTheEndOfItsStreamIsSetBackForGood(t *testing.T) {
	clamped := 0
	open := func(fs *disk.Strict) *groupShard {
		so := storage.Options{FS: fs, Fsync: storage.None, Restarted: true}
		require.NoError(t, fs.MkdirAll("/shard"))
		require.NoError(t, fs.SyncDir("/"))
		p, err := Open(deadline(t), "/shard", Options{Storage: so, Groups: &GroupHome{Dir: "/shard/groups", GroupsOptions: GroupsOptions{
			Storage: so, OnClamped: func(string, int) { clamped++ },
		}}})
		require.NoError(t, err)
		return &groupShard{t: t, p: p}
	}
	lost := false
	for seed := range uint64(20) {
		fs := disk.NewStrict(seed, disk.Options{})
		s := open(fs)
		var err error
		s.groups, err = s.p.Groups(deadline(t))
		require.NoError(t, err)
		publish(t, s.p, numbered("old ", 100)...)
		for _, r := range s.poll("g", 100, 0) {
			if r.Offset%7 != 6 {
				require.NoError(t, s.ack("g", r.Offset))
			}
		}
		require.NoError(t, s.groups.Log().Sync(deadline(t)))
		after := fs.Crash()
		closeAnyhow(s.p, fs)

		s = open(after)
		tail := s.p.Positions().Readable
		lost = lost || tail == 0
		publish(t, s.p, numbered("new ", 300)...)
		killed := after.Kill()
		closeAnyhow(s.p, after)

		s = open(killed)
		s.groups, err = s.p.Groups(deadline(t))
		require.NoError(t, err)
		got := map[storage.Offset]string{}
		for _, r := range s.poll("g", 1000, 0) {
			got[r.Offset] = string(r.Payload)
		}
		for i := range storage.Offset(300) {
			require.Equal(t, fmt.Sprintf("new %d", i), got[tail+i], "seed %d: record %d", seed, tail+i)
		}
		s.stats("g")
		s.close()
	}
	require.True(t, lost, "no power cut took what the group had acked")
	require.Positive(t, clamped)
}

// TestACopyIsDurableBeforeItsOriginalGoes cuts the power after retention has removed the
// segment of a dead letter, in a mode that flushes nothing by itself.
func TestACopyIsDurableBeforeItsOriginalGoes(t *testing.T) {
	for seed := range uint64(20) {
		fs := disk.NewStrict(seed, disk.Options{})
		so := storage.Options{FS: fs, Fsync: storage.None, SegmentBytes: storage.MinSegmentBytes, Restarted: true}
		require.NoError(t, fs.MkdirAll("/shard"))
		require.NoError(t, fs.SyncDir("/"))
		open := func() *groupShard {
			p, err := Open(deadline(t), "/shard", Options{Storage: so, Groups: &GroupHome{Dir: "/shard/groups", GroupsOptions: GroupsOptions{Storage: so}}})
			require.NoError(t, err)
			g, err := p.Groups(deadline(t))
			require.NoError(t, err)
			return &groupShard{t: t, p: p, groups: g}
		}
		s := open()
		publish(t, s.p, "poison")
		require.Len(t, s.poll("g", 1, 0), 1)
		require.NoError(t, s.groups.Do(deadline(t), "g", true, func(now segment.Micros, g *queue.Group, _, tail storage.Offset) error {
			return g.GiveUp(now, 0, tail)
		}))
		require.NoError(t, s.groups.Log().Sync(deadline(t)))
		for ctx := deadline(t); s.p.Log().Head() == 0; {
			publish(t, s.p, strings.Repeat("x", 1000))
			_, err := s.p.Log().TrimHead(ctx, s.p.retentionLimit())
			require.NoError(t, err)
		}
		after := fs.Crash()
		closeAnyhow(s.p, fs)
		so.FS = after
		s = open()
		letters, _, err := s.groups.Letters(deadline(t), "g", 0, 10)
		require.NoError(t, err)
		require.Len(t, letters, 1, "seed %d", seed)
		require.Equal(t, "poison", string(letters[0].Payload), "seed %d", seed)
		s.close()
	}
}
