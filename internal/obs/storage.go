package obs

import (
	"log/slog"
	"sync"

	"github.com/felixlog/felix/storage"
)

// tally adds up, by shard, what an open says piece by piece, until it has ended.
type tally struct {
	mu  sync.Mutex
	sum map[string]int64
}

func (t *tally) add(shard string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sum == nil {
		t.sum = make(map[string]int64)
	}
	t.sum[shard] += n
}

// take is what was added for shard since it was asked before.
func (t *tally) take(shard string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.sum[shard]
	delete(t.sum, shard)
	return n
}

// StorageEvents hangs metrics and log lines on the logs of a broker.
func (m *Metrics) StorageEvents(log *slog.Logger) storage.Events {
	// Room written ahead of the log that was cut: of it nothing is saved, for nothing was there.
	var ahead tally
	var indexless tally // segments without an index, made again
	return storage.Events{
		OnSync: func(e storage.SyncEvent) {
			m.syncDuration.Observe(e.Duration.Seconds())
			if e.Appends > 0 {
				m.syncBatch.Observe(float64(e.Appends))
			}
		},
		OnSyncFailure: func(shard string, err error) {
			m.syncFailures.Inc()
			log.Error("flush failed: what it covered may not survive a power cut", "shard", shard, "error", err)
		},
		OnRoll: func(shard string, sealed, active storage.Descriptor) {
			m.rolls.Inc()
			log.Debug("segment rolled", "shard", shard, "segment", active.ID, "first_offset", active.Base)
		},
		OnRecovery: func(shard string, r storage.RecoveryReport) {
			m.recoveryDuration.Observe(r.Duration.Seconds())
			if torn := r.TruncatedBytes - ahead.take(shard); torn > 0 {
				m.recoveryCut.Add(float64(torn))
			}
			if n := indexless.take(shard); n > 0 {
				log.Info("indexes that were not there were made from their segments, as after a restore", "shard", shard, "indexes", n)
			}
			if r.MarkMissing {
				log.Warn("durable.mark of the shard was not there or not readable: it was removed, is damaged, or the directory is a copy without it; records missing from the end would not be noticed", "shard", shard, "next_offset", r.Next)
			}
			if r.MayHaveLost {
				m.maybeLost.Inc()
				log.Error("the log ends before records that may have been acknowledged; what was cut is in lost/", "shard", shard, "cut_bytes", r.TruncatedBytes, "reason", r.Lost)
			}
		},
		OnCut: func(shard string, c storage.CutEvent) {
			if c.Zeros && !c.MayBeLost {
				ahead.add(shard, c.To-c.From)
				log.Debug("room written ahead of the log was cut; it held no record", "shard", shard, "segment", c.Segment, "bytes", c.To-c.From)
				return
			}
			log.Warn("log cut", "shard", shard, "segment", c.Segment, "from", c.From, "to", c.To, "bytes", c.To-c.From, "next_offset", c.Next, "reason", c.Reason, "saved", c.Saved, "acknowledged_may_be_lost", c.MayBeLost)
		},
		OnTrim: func(shard string, r storage.RetentionResult) {
			m.trimmedBytes.Add(float64(r.Bytes))
			m.trimmedSegments.Add(float64(r.Segments))
			log.Info("retention removed segments", "shard", shard, "segments", r.Segments, "bytes", r.Bytes, "oldest", r.Head)
		},
		OnPoison: func(shard string, err *storage.PoisonedError) {
			m.poisoned.Inc()
			log.Error("log takes no appends until it is reopened", "shard", shard, "error", err)
		},
		OnReopen: func(shard string) {
			log.Info("log serves again", "shard", shard)
		},
		OnStray: func(shard, name string) {
			m.stray.Inc()
			log.Warn("file is not the log's and is left alone", "shard", shard, "file", name)
		},
		OnClockAhead: func(shard string, last, wall storage.Micros) {
			m.clockAhead.Inc()
			log.Error("newest record is ahead of the clock: times descend once", "shard", shard, "last_micros", last, "wall_micros", wall)
		},
		OnIndexRebuilt: func(shard string, id storage.SegmentID, reason string) {
			if reason == storage.IndexMissing {
				indexless.add(shard, 1) // a copy has none, and it may have thousands of segments
				return
			}
			log.Warn("index made again from its segment", "shard", shard, "segment", id, "reason", reason)
		},
		OnBackgroundError: func(shard, op string, err error) {
			log.Warn("background work failed and is tried again", "shard", shard, "op", op, "error", err)
		},
	}
}
