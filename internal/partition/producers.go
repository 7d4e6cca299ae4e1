package partition

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// producerState is a durable shard's memory of its idempotent producers. The log's pen
// admits while another goroutine may report a group stable, hence the lock; it is not
// taken for a group while no batch of a producer is in flight.
type producerState struct {
	inFlight atomic.Int64
	// stableAt: the table holds every batch below it and none at or above it. It moves
	// with the table under mu, or alone while nothing is in flight.
	stableAt atomic.Uint64
	since    atomic.Int64 // bytes written after the last snapshot
	used     atomic.Bool  // a snapshot is worth writing

	mu    sync.Mutex
	table stream.Producers

	writing atomic.Bool   // one snapshot at a time
	saved   atomic.Uint64 // the offset of the last one
}

func (s *producerState) admit(b *Publish, next storage.Offset) (storage.Offset, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, err := s.table.Admit(b.ProducerID, b.Sequence, len(b.Payloads), b.digest, next)
	if err == nil {
		s.inFlight.Add(1)
	}
	return first, err
}

// stable moves the table to next and returns how many producers had to make room.
func (s *producerState) stable(next storage.Offset, bytes int) (forgotten int) {
	s.since.Add(int64(bytes))
	if s.inFlight.Load() == 0 {
		s.stableAt.Store(uint64(next))
		return 0
	}
	s.mu.Lock()
	before := s.table.Evicted()
	s.table.Stable(next)
	forgotten = s.table.Evicted() - before
	s.inFlight.Store(int64(s.table.InFlight()))
	s.stableAt.Store(uint64(next))
	s.mu.Unlock()
	s.used.Store(true)
	return forgotten
}

func (s *producerState) revert(next storage.Offset) {
	s.mu.Lock()
	s.table.Revert(next)
	s.inFlight.Store(int64(s.table.InFlight()))
	s.mu.Unlock()
}

// reopened replays the records a poisoned log turned out to hold. The log is about to
// serve: it admits nothing and reports nothing stable meanwhile. An error is a lack of
// descriptors to read them with: it is tried again, and what is in the table already is
// known then.
func (s *producerState) reopened(p *Partition, from, next storage.Offset) error {
	err := projection.Replay(context.Background(), p.log, from, next, func(rec *storage.Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.table.Replay(rec)
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.CloseOpen()
	if storage.IsOutOfFiles(err) {
		return err
	}
	if err != nil {
		// The table stays behind the log, which holds records that cannot be read: a retry
		// of a batch among them would be written again. Forgetting everything has such
		// retries refused as of unknown producers, but for a producer's very first batch.
		s.table = stream.Producers{}
	}
	s.stableAt.Store(uint64(next))
	s.used.Store(true)
	return nil
}

// loadProducers rebuilds the table: from the snapshot where it is valid, then from the
// records after it. A batch of which the log holds only the first records was never
// answered: it is cut off, so that sending it again writes it once.
func (p *Partition) loadProducers(ctx context.Context) error {
	s := &p.producers
	head, tail := p.log.Head(), p.log.Next()
	s.stableAt.Store(uint64(tail))
	// Where the publisher is kept every segment is of a version that may hold batches.
	s.used.Store(p.o.StorePublisher)
	if head == tail {
		return nil
	}
	from := head
	snapshot, err := segment.ReadProducers(p.o.Storage.FS, p.log.Dir())
	if err != nil {
		return fmt.Errorf("read producers of %s: %w", p.name, err)
	}
	switch {
	case snapshot != nil && snapshot.AsOf >= head && snapshot.AsOf <= tail:
		s.table.Restore(snapshot)
		s.used.Store(true)
		from = snapshot.AsOf
		s.saved.Store(uint64(from))
	default:
		holds, err := mayHoldProducers(p.log, p.o.Storage.FS)
		if err != nil {
			return fmt.Errorf("read segments of %s: %w", p.name, err)
		}
		if !holds {
			return nil
		}
	}
	if from < tail {
		if err := p.replay(ctx, from, tail); err != nil {
			return err
		}
	}
	first, torn := s.table.OpenBatch()
	if !torn {
		return nil
	}
	s.table.CloseOpen()
	if p.gate != nil || first < head {
		return nil
	}
	if err := p.log.TruncateTo(ctx, first); err != nil {
		return fmt.Errorf("cut torn batch at %d of %s: %w", first, p.name, err)
	}
	s.stableAt.Store(uint64(first))
	if p.o.Events.OnTornBatch != nil {
		p.o.Events.OnTornBatch(p.name, first, tail)
	}
	return nil
}

func (p *Partition) replay(ctx context.Context, from, tail storage.Offset) error {
	s := &p.producers
	err := projection.Replay(ctx, p.log, from, tail, func(rec *storage.Record) error {
		s.table.Replay(rec)
		s.since.Add(int64(rec.Size))
		return nil
	})
	if err != nil {
		return fmt.Errorf("rebuild producers of %s from %d: %w", p.name, from, err)
	}
	s.used.Store(true)
	if p.o.Events.OnProducersRebuilt != nil {
		p.o.Events.OnProducersRebuilt(p.name, from, tail)
	}
	return nil
}

// mayHoldProducers looks at the headers of the segments: one of the lowest version
// holds plain records only.
func mayHoldProducers(log *storage.Log, fsys vfs.FS) (bool, error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	for _, d := range log.Segments() {
		v, err := segmentVersion(fsys, filepath.Join(log.Dir(), segment.SegmentName(d.ID)))
		if err != nil {
			return false, err
		}
		if v >= segment.VersionProducer {
			return true, nil
		}
	}
	return false, nil
}

func segmentVersion(fsys vfs.FS, name string) (segment.Version, error) {
	f, err := fsys.OpenFile(name, vfs.ReadOnly)
	if err != nil {
		return 0, err
	}
	var buf [segment.HeaderSize]byte
	_, err = f.ReadAt(buf[:], 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	h, err := segment.DecodeHeader(buf[:])
	if err != nil {
		return 0, err
	}
	return h.Version, nil
}

// maybeSnapshot starts writing a snapshot if enough was written since the last one, so
// that opening after a crash reads a bounded part of the log.
func (p *Partition) maybeSnapshot() {
	s := &p.producers
	if s.since.Load() < p.o.SnapshotEvery || !s.used.Load() {
		return
	}
	s.since.Store(0)
	p.background.start(func() { p.writeSnapshot(context.Background()) })
}

// writeSnapshot writes what the table holds as of the log's stable tail.
func (p *Partition) writeSnapshot(ctx context.Context) {
	s := &p.producers
	if !s.used.Load() {
		return
	}
	if !s.writing.CompareAndSwap(false, true) {
		return // it will be due again
	}
	defer s.writing.Store(false)
	s.mu.Lock()
	asOf := storage.Offset(s.stableAt.Load())
	snapshot := s.table.Snapshot(asOf)
	s.mu.Unlock()
	if uint64(asOf) == s.saved.Load() {
		return
	}
	err := p.log.WriteSide(ctx, segment.ProducersName, segment.AppendProducers(nil, snapshot))
	if err == nil {
		s.saved.Store(uint64(asOf))
		return
	}
	if p.o.Events.OnSnapshotError != nil {
		p.o.Events.OnSnapshotError(p.name, err)
	}
}
