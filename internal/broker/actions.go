package broker

import (
	"context"

	"github.com/felixlog/felix/internal/partition"
	"github.com/felixlog/felix/storage"
)

// What an operator asks for of a stream or cache, shard by shard. Report is told of each
// shard; an error of one does not keep the others from their turn. The error returned is
// a *wire.Failure: not_found, draining.

// ReopenStream tries its damaged and poisoned shards again, as an operator asks for once
// the reason is gone. The others are left alone.
func (b *Broker) ReopenStream(ctx context.Context, tenant, namespace, name string, report func(shard int, state string, err error)) error {
	s, err := b.Stream(tenant, namespace, name)
	if err != nil {
		return err
	}
	b.reopenAll(ctx, &s.resource, report)
	return nil
}

// ReopenCache is ReopenStream for a cache and its counters.
func (b *Broker) ReopenCache(ctx context.Context, tenant, namespace, name string, report func(shard int, state string, err error)) error {
	c, err := b.Cache(tenant, namespace, name)
	if err != nil {
		return err
	}
	b.reopenAll(ctx, &c.resource, report)
	return nil
}

func (b *Broker) reopenAll(ctx context.Context, r *resource, report func(int, string, error)) {
	for i := range r.shards {
		err := b.reopen(ctx, r, i)
		report(i, r.ShardState(i).String(), err)
	}
}

// RetainStream applies its retention now instead of at the next interval.
func (b *Broker) RetainStream(ctx context.Context, tenant, namespace, name string, report func(shard int, removed storage.RetentionResult, err error)) error {
	s, err := b.Stream(tenant, namespace, name)
	if err != nil {
		return err
	}
	for i := range s.shards {
		p, err := s.Shard(i)
		if err != nil {
			report(i, storage.RetentionResult{}, err)
			continue
		}
		r, err := retain(ctx, p)
		report(i, r, err)
	}
	return nil
}

func retain(ctx context.Context, p *partition.Partition) (storage.RetentionResult, error) {
	l := p.Log()
	if l == nil {
		return storage.RetentionResult{}, nil // in memory: the ring is all there is
	}
	return l.EnforceRetention(ctx, 0)
}
