package replica

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// proposal is a change of the set whose outcome is not known.
type proposal struct {
	assignment *meta.Assignment
	base       meta.Version // that it was made from
	unsure     bool         // an attempt was handed over and its answer is missing
}

// Errors of ChangeSet.
var (
	// ErrNotLeading: only a serving leader changes the set.
	ErrNotLeading = errors.New("replica: not leading")
	// ErrChangePending: the outcome of the last change is not known yet.
	ErrChangePending = errors.New("replica: a set change is pending")
	// ErrNotLevel: a majority of the new set, or the member to be added, does not hold
	// all that is committed.
	ErrNotLevel = errors.New("replica: the new set is not level")
	// ErrBadSet: the set does not differ by one member, or leaves the leader out.
	ErrBadSet = errors.New("replica: not a change of one member")
)

// ChangeSet begins to change the set to next: one member added, removed, or replaced.
// SetChanged tells of its success.
func (r *Replica) ChangeSet(now time.Duration, next []meta.Member) error {
	r.now = now
	if r.role != Leading {
		return ErrNotLeading
	}
	if r.proposal != nil || r.asking {
		return ErrChangePending
	}
	next = slices.Clone(next)
	slices.SortFunc(next, func(a, b meta.Member) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	added, removed := difference(r.set, next)
	if len(added) > 1 || len(removed) > 1 || len(added)+len(removed) == 0 || !contains(next, meta.Member{Node: r.cfg.Node, Disk: r.opening.Disk}) {
		return ErrBadSet
	}
	if r.rules.Hold(LevelFirst) {
		for i := range r.logs {
			l := &r.logs[i]
			if r.held(l, next) < l.mark {
				return fmt.Errorf("log %d: %w", i, ErrNotLevel)
			}
			for _, m := range added {
				p := r.peer(m.Node)
				if p == nil || p.opening.Disk != m.Disk || p.logs[i].match < l.mark {
					return fmt.Errorf("log %d, node %s: %w", i, m.Node, ErrNotLevel)
				}
			}
		}
	}
	a := r.assignment.Clone()
	a.Members = next
	a.Revision++
	if !r.rules.Hold(OwnAssignment) {
		r.changed(a, r.version) // without the clause: no transaction
		return nil
	}
	r.proposal = &proposal{assignment: a, base: r.version}
	r.meetPeers()
	r.propose(a, r.version)
	return nil
}

func contains(set []meta.Member, m meta.Member) bool { return slices.Contains(set, m) }

func difference(from, to []meta.Member) (added, removed []meta.Member) {
	for _, m := range to {
		if !contains(from, m) {
			added = append(added, m)
		}
	}
	for _, m := range from {
		if !contains(to, m) {
			removed = append(removed, m)
		}
	}
	return added, removed
}

// changed takes over a set that is known to be stored.
func (r *Replica) changed(a *meta.Assignment, version meta.Version) {
	r.assignment, r.version = a.Clone(), version
	r.set = r.assignment.Clone().Members
	r.proposal = nil
	for i := range r.peers {
		if slices.ContainsFunc(r.set, func(m meta.Member) bool { return m.Node == r.peers[i].node }) {
			r.peers[i].learner = false
		}
	}
	r.recount()
	r.effect(Effect{Type: SetChanged, Assignment: a.Clone(), Version: version})
}

// tickChange repeats a proposal whose outcome is missing: the same transaction either
// takes effect now, or conflicts because it, or something else, did before.
func (r *Replica) tickChange() {
	if r.proposal != nil && !r.asking && r.now-r.askedAt >= ResendAfter {
		r.propose(r.proposal.assignment, r.proposal.base)
	}
}

// Away lists the members of a leader-consistency shard that have been silent for
// AwayAfter, longest first: the shard goes on without them (rule 8) by ChangeSet.
func (r *Replica) Away(now time.Duration) []meta.Member {
	if r.role != Leading || r.cfg.Consistency != meta.ConsistencyLeader {
		return nil
	}
	var away []meta.Member
	for _, m := range r.set {
		if p := r.peer(m.Node); p != nil && now-p.heard >= AwayAfter {
			away = append(away, m)
		}
	}
	return away
}

// Strangers lists the replicas the leader brings level that are not the listed ones:
// learners, and members whose disk is another than the listed one; with what is known
// of them, and whether they are level.
func (r *Replica) Strangers() []Stranger {
	var out []Stranger
	for i := range r.peers {
		p := &r.peers[i]
		m := meta.Member{Node: p.node, Disk: p.opening.Disk}
		if m.Disk == 0 || contains(r.set, m) {
			continue
		}
		level := true
		for j := range r.logs {
			level = level && p.logs[j].match >= r.logs[j].mark
		}
		out = append(out, Stranger{Member: m, Level: level})
	}
	return out
}

// Stranger is a replica that no set lists.
type Stranger struct {
	Member meta.Member
	Level  bool // it holds all that is committed
}
