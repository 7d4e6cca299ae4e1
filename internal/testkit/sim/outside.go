package sim

import (
	"strings"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// outsideProfile: replicas leave the set and come back into it, and in the meantime the set,
// which is a single replica, loses what they kept. Such a replica stops, and does not come
// level by itself: an operator sets its directory aside.
func outsideProfile(s *Shape) {
	s.Churn, s.Outside = true, true
	s.FaultTime = 20 * time.Second
	s.Factor, s.Consistency, s.Fsync, s.Retention = 1, meta.ConsistencyQuorum, storage.None, false
}

// setAside lets an operator set the directory of a replica aside that is no member and
// halted because it knows to be committed what the leader does not have, which must be what
// the set lost. One that halted for another reason keeps it: a change that lists its disk may
// be under way.
func (w *world) setAside(n *node, reason string) {
	if !strings.Contains(reason, "committed") {
		return
	}
	s := n.shard
	w.after(w.between(200*time.Millisecond, 2*time.Second), func() {
		a, _ := w.meta.assignment()
		if n.shard != s || s.rep.Role() != replica.Stopped || a == nil {
			return
		}
		if _, member := a.Lookup(n.id); member {
			return
		}
		w.check.settingAside(n)
		w.trace(n, "set aside", nil)
		n.stop()
		n.disk = newDisk(n)
		n.start()
	})
}
