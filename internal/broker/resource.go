package broker

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/wire"
)

// unit is what a shard serves while it is open.
type unit interface {
	State() partition.State
	Health() error
	Close(ctx context.Context) error
	Delete(ctx context.Context) error
	Reopen(ctx context.Context) error
}

// definition is what differs between streams and caches: where a shard's log is and how
// it is opened.
type definition interface {
	incarnation() uint64
	durable() bool
	openShard(ctx context.Context, sh *shard, dir string) (unit, error)
	opened(u unit)
}

// resource is a stream or a cache as this node serves it: its shards, and how they come
// and go.
type resource struct {
	broker  *Broker
	def     definition
	kind    string // "stream" or "cache"
	key     key
	shards  []shard
	deleted atomic.Bool
	// gone is closed when its directories are out of the way of another of the name;
	// before is that of the one that had the name last, nil if none had.
	gone, before chan struct{}
	openers      openers
}

// shard is one place of a resource; its unit comes and goes.
type shard struct {
	owner  *resource
	index  uint32
	name   string
	status atomic.Pointer[status]
}

// status is immutable.
type status struct {
	state partition.State
	unit  unit  // Active
	err   error // Damaged
	tries int   // in a row that failed, before this
}

// unjudged says that the shard could not be opened for another reason than its bytes: they
// were not looked at.
func (st *status) unjudged() bool {
	return st.err != nil && !isA[*storage.DamagedError](st.err) && !isA[*storage.Corruption](st.err) &&
		!isA[*projection.UnreadableError](st.err)
}

func (r *resource) init(b *Broker, def definition, kind string, k key, shards uint32) {
	r.broker, r.def, r.kind, r.key, r.gone = b, def, kind, k, make(chan struct{})
	r.shards = make([]shard, shards)
	for i := range r.shards {
		sh := &r.shards[i]
		sh.owner, sh.index = r, uint32(i)
		sh.name = fmt.Sprintf("%s/%s/%s/%d", k.tenant, k.namespace, k.name, i)
		if kind != kindStream {
			sh.name = kind + " " + sh.name
		}
		sh.status.Store(&status{state: partition.Opening})
	}
}

// dirName is the name of the shard's directory below a root.
func (sh *shard) dirName() string {
	k := sh.owner.key
	return segment.ShardDirName(k.tenant, k.namespace, k.name, sh.index)
}

// subs are the subdirectories of the root in which its shards have directories, that of
// what they are first.
func (r *resource) subs() []string {
	if r.kind == kindCache {
		return []string{cachesDir, countersDir}
	}
	return []string{""}
}

// lastKey names what shares directories with it.
func (r *resource) lastKey() lastKey { return lastKey{r.kind, r.key} }

type lastKey struct {
	kind string
	key  key
}

// The kinds of resource.
const (
	kindStream = "stream"
	kindCache  = "cache"
)

// Shards is how many there are.
func (r *resource) Shards() int { return len(r.shards) }

// Deleted says that it does not exist any more.
func (r *resource) Deleted() bool { return r.deleted.Load() }

// unit is what the i-th shard serves. The error is a *wire.Failure.
func (r *resource) unit(i int) (unit, error) {
	if uint(i) >= uint(len(r.shards)) {
		return nil, wire.NewFailure(wire.CodeInvalidRequest, fmt.Sprintf("shard %d does not exist: the %s has %d", i, r.kind, len(r.shards)))
	}
	st := r.shards[i].status.Load()
	if st.unit != nil {
		return st.unit, nil
	}
	return nil, r.shards[i].unavailable(st)
}

// ShardState is what the i-th shard is doing.
func (r *resource) ShardState(i int) partition.State {
	st := r.shards[i].status.Load()
	if st.unit != nil {
		return st.unit.State()
	}
	return st.state
}

func (r *resource) opening() bool {
	for i := range r.shards {
		if r.shards[i].status.Load().state == partition.Opening {
			return true
		}
	}
	return false
}

// waitBefore waits until the directories of the one that had the name are out of the
// way, or ctx ends.
func (r *resource) waitBefore(ctx context.Context) {
	select {
	case <-r.before:
	case <-ctx.Done():
	}
}

func (sh *shard) unavailable(st *status) error {
	if sh.owner.deleted.Load() {
		return Failure(partition.ErrDeleted)
	}
	switch st.state {
	case partition.Damaged:
		f := Failure(st.err)
		if f.Code != wire.CodeShardUnavailable {
			f = wire.NewFailure(wire.CodeShardUnavailable, f.Message).WithReason(wire.ReasonNotReady).
				WithRetry(wire.RetryAfter).After(retryPoisoned)
		}
		return f
	case partition.Closed:
		return Failure(ErrDraining)
	default:
		return wire.NewFailure(wire.CodeShardUnavailable, "shard "+sh.name+" is being recovered").
			WithReason(wire.ReasonNotReady).WithRetry(wire.RetryAfter).After(retryOpening)
	}
}

func (sh *shard) set(st *status) {
	sh.status.Store(st)
	sh.tell(st)
}

// tell says that st has become the status.
func (sh *shard) tell(st *status) {
	b := sh.owner.broker
	if b.o.Events.OnState != nil {
		b.o.Events.OnState(sh.name, st.state, st.err)
	}
	b.changed()
}
