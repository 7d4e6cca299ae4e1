package node

import (
	"strconv"

	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/obs"
)

// groupsNamed bounds the groups that have metrics of their own.
const groupsNamed = 1000

// readings are the figures of caches and groups for a scrape.
func (n *Node) readings() obs.Readings {
	return obs.Readings{
		Caches: func() (all []obs.CacheFigures) {
			n.broker.Caches(func(c *broker.Cache) {
				t := c.Totals()
				f := obs.CacheFigures{
					Gets: t.Gets.Load(), Hits: t.Hits.Load(), Puts: t.Puts.Load(), Deletes: t.Deletes.Load(),
					Conditions: t.Refused.Load(), Full: t.Full.Load(), Failed: t.Failed.Load(),
					Expired: t.Expired.Load(), Evicted: t.Evicted.Load(), WatchEvents: t.WatchEvents.Load(),
					CounterAdds: t.CounterAdds.Load(), CounterRepeated: t.CounterRepeats.Load(),
				}
				f.Tenant, f.Namespace, f.Cache = c.Name()
				f.Keys, f.Bytes, f.Watchers = c.Sums()
				all = append(all, f)
			})
			return all
		},
		Groups: func() (named []obs.GroupFigures, groups int) {
			n.broker.Streams(func(s *broker.Stream) {
				def := s.Meta()
				for shard := range s.Shards() {
					p, err := s.Shard(shard)
					if err != nil {
						continue // out of service: felix_shards says so
					}
					stats, count := p.GroupStats(groupsNamed - len(named))
					groups += count
					for _, g := range stats {
						named = append(named, obs.GroupFigures{
							Tenant: def.Tenant, Namespace: def.Namespace, Stream: def.Name, Shard: strconv.Itoa(shard), Group: g.Group,
							Ready: g.Ready, Delayed: g.Delayed, Claimed: g.Claimed, Dead: g.Dead,
							Acked: g.Acked, Discarded: g.Discarded, Lost: g.Lost, Lag: g.Lag,
						})
					}
				}
			})
			return named, groups
		},
	}
}
