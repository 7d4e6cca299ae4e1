package node

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/obs"
	"github.com/felixlog/felix/internal/queue"
)

// How many streams and groups have metrics of their own: the first by name.
const (
	streamsNamed = 1000
	groupsNamed  = 1000
)

// streamsByName are all streams in the order of their names, so that those which are
// named are the same at each scrape.
func (n *Node) streamsByName() []*broker.Stream {
	var all []*broker.Stream
	n.broker.Streams(func(s *broker.Stream) { all = append(all, s) })
	slices.SortFunc(all, func(a, b *broker.Stream) int {
		x, y := a.Meta(), b.Meta()
		return cmp.Or(strings.Compare(x.Tenant, y.Tenant), strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	return all
}

// readings are the figures of streams, caches and groups for a scrape.
func (n *Node) readings() obs.Readings {
	return obs.Readings{
		Streams: func() (named []obs.StreamFigures, streams int) {
			all := n.streamsByName()
			for _, s := range all[:min(len(all), streamsNamed)] {
				stats, c := s.Stats(), s.Counters()
				named = append(named, obs.StreamFigures{
					Tenant: stats.Tenant, Namespace: stats.Namespace, Stream: stats.Name,
					Shards: s.Shards(), Subscribers: stats.Subscribers, Lag: stats.Lag,
					Records: c.Records.Load(), Bytes: c.Bytes.Load(),
					DeliveredRecords: c.DeliveredEvents.Load(), DeliveredFrames: c.DeliveredBytes.Load(),
					PollsCut: c.PollsCut.Load(), Forgotten: c.Forgotten.Load(),
				})
			}
			return named, len(all)
		},
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
				def := c.Meta()
				f.MaxKeys, f.MaxBytes = int64(def.MaxKeys), int64(def.MaxBytes)
				all = append(all, f)
			})
			return all
		},
		Values: func() obs.CacheValueFigures {
			return obs.CacheValueFigures(n.broker.CacheValues())
		},
		Groups: func() (named []obs.GroupFigures, groups int) {
			for _, s := range n.streamsByName() {
				figures, count := groupFigures(s, groupsNamed-len(named))
				named, groups = append(named, figures...), groups+count
			}
			return named, groups
		},
	}
}

// groupFigures are the figures of at most limit groups and shards of a stream, by name, and how
// many have been seen. A group that some shard has seen has all of the others before it, from
// where it would begin there. Of a shard with more groups than limit, those that are not
// asked for come behind limit others, so that none is taken for one it has not seen.
func groupFigures(s *broker.Stream, limit int) (named []obs.GroupFigures, seen int) {
	shards := make([]map[string]queue.Stats, s.Shards())
	var names []string
	for i := range shards {
		p, err := s.Shard(i)
		if err != nil {
			continue // out of service: felix_shards says so
		}
		stats, count := p.GroupStats(limit)
		seen += count
		shards[i] = make(map[string]queue.Stats, len(stats))
		for _, g := range stats {
			shards[i][g.Group] = g.Stats
			names = append(names, g.Group)
		}
	}
	slices.Sort(names)
	def := s.Meta()
	for _, name := range slices.Compact(names) {
		for i, stats := range shards {
			p, err := s.Shard(i)
			if stats == nil || err != nil {
				continue
			}
			if len(named) == limit {
				return named, seen
			}
			g, ok := stats[name]
			if !ok {
				g = p.NoGroup()
			}
			named = append(named, obs.GroupFigures{
				Tenant: def.Tenant, Namespace: def.Namespace, Stream: def.Name, Shard: strconv.Itoa(i), Group: name,
				Ready: g.Ready, Delayed: g.Delayed, Claimed: g.Claimed, Dead: g.Dead,
				Acked: g.Acked, Discarded: g.Discarded, Lost: g.Lost, Lag: g.Lag,
			})
		}
	}
	return named, seen
}
