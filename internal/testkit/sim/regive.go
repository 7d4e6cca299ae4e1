package sim

import (
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// regivenProfile: the metadata is restored from a backup that does not know of set changes,
// and gives a generation again, to the leader of a majority without the first one's.
func regivenProfile(s *Shape) {
	s.Aimed = []FaultKind{Regive}
	s.FaultTime = 20 * time.Second
	s.Factor, s.Consistency, s.Fsync, s.Retention = 3, meta.ConsistencyQuorum, storage.OnCommit, false
}

// regiveTime is what it takes, at most, until the metadata is restored.
const regiveTime = 8 * time.Second

// regive is a restore of the metadata that forgets that a leader was left alone in its
// set, at a moment when it has committed nothing by that:
//
//   - it is killed as the change is stored, before it reads so;
//   - it is given the next generation, and killed as its first record is written, before
//     that is flushed;
//   - the metadata is restored, and the others are given the same generation.
//
// So nothing is lost that was acknowledged, which a restore of this kind does not promise
// otherwise (docs/replication.md). For the same reason the first leader stays away until
// the others have committed more than it has: of two logs that end in one generation the
// longer one is taken to be further.
type regive struct {
	world  *world
	leader *node
	shard  *shard // the opening that is to be killed next
	backup *meta.Backup
	wanted []int // the set as it was
	end    time.Duration
	tails  []offset // of the first leader's logs
}

func (w *world) regive(f *Fault) {
	l := w.leader()
	if l == nil || w.regiving || len(w.others(l)) != 2 || w.now+regiveTime > w.shape.FaultTime {
		return
	}
	r := &regive{world: w, leader: l, shard: l.shard, backup: w.meta.store.Backup(), wanted: w.shard.desired, end: w.now + regiveTime}
	w.regiving = true
	w.shard.desired = []int{l.index}
	w.when(r.leftAlone)
}

// give up: the set shall be what it was.
func (r *regive) giveUp() bool {
	r.world.regiving = false
	r.world.shard.desired = r.wanted
	return true
}

// leftAlone waits until the metadata says that the leader is the set.
func (r *regive) leftAlone() bool {
	w, l := r.world, r.leader
	if l.shard != r.shard || !r.shard.rep.Serving() || w.now > r.end {
		return r.giveUp()
	}
	a, _ := w.meta.assignment()
	if a == nil || len(a.Members) != 1 {
		return false
	}
	if _, pending := r.shard.rep.Set(); pending == nil {
		return r.giveUp()
	}
	l.kill()
	w.after(w.between(10*time.Millisecond, 500*time.Millisecond), func() {
		l.start()
		r.shard = l.shard
		w.when(r.began)
	})
	return true
}

// began waits until a record of the leader's next generation is written.
func (r *regive) began() bool {
	w, l := r.world, r.leader
	if l.shard != r.shard || l.shard == nil || w.now > r.end {
		return r.giveUp()
	}
	rep := l.shard.rep
	term := rep.Term()
	if rep.Role() != replica.Starting || !slices.ContainsFunc(w.logIDs(), func(id replica.LogID) bool { return rep.Log(id).Last == term.Generation }) {
		return false
	}
	for _, id := range w.logIDs() {
		r.tails = append(r.tails, rep.Log(id).Tail)
	}
	l.kill()
	l.parked = true
	w.meta.store.Restore(r.backup)
	w.check.regiven = term.Generation
	w.shard.desired = r.wanted
	w.trace(nil, "regiven", nil, uint64(term.Generation))
	r.overtaken()
	return true
}

// overtaken lets the first leader come back some time after others have committed more.
func (r *regive) overtaken() {
	w := r.world
	w.after(50*time.Millisecond, func() {
		n := w.leader()
		if n == nil || slices.ContainsFunc(w.logIDs(), func(id replica.LogID) bool { return n.shard.rep.Log(id).Mark <= r.tails[id] }) {
			r.overtaken()
			return
		}
		w.after(w.between(0, time.Second), func() {
			w.regiving = false
			r.leader.parked = false
			r.leader.start()
		})
	})
}

// logIDs are the shard's logs.
func (w *world) logIDs() []replica.LogID {
	out := make([]replica.LogID, w.logs())
	for i := range out {
		out[i] = replica.LogID(i)
	}
	return out
}

// regivenTo says that a term has a generation that the metadata gave again, and no disk
// voted for both. Such a generation may have two leaders; who follows one of them tells
// the other's records by their checksums.
func (c *checker) regivenTo(t replica.Term, votes []meta.DiskID) bool {
	return t.Generation == c.regiven && !slices.ContainsFunc(c.fences, func(f fenceVotes) bool {
		return f.term.Generation == t.Generation && f.term != t && slices.ContainsFunc(f.votes, func(d meta.DiskID) bool { return slices.Contains(votes, d) })
	})
}
