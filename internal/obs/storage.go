package obs

import (
	"log/slog"
	"sync"

	"github.com/felixlog/felix/storage"
)

// zeros remembers, by shard, what recovery cut that held no record: room that was written
// ahead of the log. Of it nothing is saved, for nothing was there.
type zeros struct {
	mu    sync.Mutex
	bytes map[string]int64
}

// cut says whether c is such a cut.
func (z *zeros) cut(shard string, c storage.CutEvent) bool {
	if !c.Zeros || c.MayBeLost {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.bytes == nil {
		z.bytes = make(map[string]int64)
	}
	z.bytes[shard] += c.To - c.From
	return true
}

// take is what was cut of shard since it was asked before.
func (z *zeros) take(shard string) int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	n := z.bytes[shard]
	delete(z.bytes, shard)
	return n
}

// StorageEvents hangs metrics and log lines on the logs of a broker.
func (m *Metrics) StorageEvents(log *slog.Logger) storage.Events {
	var ahead zeros
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
			if r.MarkMissing {
				log.Warn("durable.mark of the shard was not there or not readable: it was removed, is damaged, or the directory is a copy without it; records missing from the end would not be noticed", "shard", shard, "next_offset", r.Next)
			}
			if r.MayHaveLost {
				m.maybeLost.Inc()
				log.Error("the log ends before records that may have been acknowledged; what was cut is in lost/", "shard", shard, "cut_bytes", r.TruncatedBytes, "reason", r.Lost)
			}
		},
		OnCut: func(shard string, c storage.CutEvent) {
			if ahead.cut(shard, c) {
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
			log.Warn("index made again from its segment", "shard", shard, "segment", id, "reason", reason)
		},
		OnBackgroundError: func(shard, op string, err error) {
			log.Warn("background work failed and is tried again", "shard", shard, "op", op, "error", err)
		},
	}
}
