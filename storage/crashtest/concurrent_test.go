package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage"
)

// TestConcurrentAppenders loses power, or the process, under a log with its own
// goroutines and several appenders. Which operation meets it is up to the scheduler,
// so a seed does not replay exactly; what must hold is the same.
func TestConcurrentAppenders(t *testing.T) {
	count := setting(t, "FELIX_CRASH_SEEDS", 300) / 3
	for seed := range count {
		mode := []storage.FsyncMode{storage.OnCommit, storage.Periodic, storage.None}[seed%3]
		var err error
		synctest.Test(t, func(t *testing.T) { err = concurrent(seed, mode) })
		if err != nil {
			t.Fatalf("seed %d, %v: %v", seed, mode, err)
		}
	}
}

func concurrent(seed uint64, mode storage.FsyncMode) error {
	r := rand.New(rand.NewPCG(seed, 0xc0c0))
	strict := disk.NewStrict(r.Uint64(), disk.Options{})
	ctx := context.Background()
	acked := map[storage.Offset]ref{}
	handed := map[uint64]bool{}
	restarted := false
	for life := range 3 {
		power := r.IntN(2) == 0
		options := storage.Options{
			FS: strict, Fsync: mode, FsyncInterval: 20 * time.Millisecond, SegmentBytes: 2048,
			Restarted: restarted, Preallocate: r.IntN(2) == 0,
		}
		log, err := storage.Open(ctx, logDir, options)
		if err != nil {
			return fmt.Errorf("life %d: open: %w", life, err)
		}
		if err := checkConcurrent(ctx, log, acked, handed); err != nil {
			return errors.Join(fmt.Errorf("life %d: %w", life, err), log.Close(ctx))
		}
		strict.StopAfter(strict.Ops() + r.IntN(150))
		var mu sync.Mutex
		var wg sync.WaitGroup
		var failed error
		for a := range uint64(6) {
			wg.Go(func() {
				for i := range uint64(1000) {
					number := uint64(life)<<32 | a<<16 | i
					e := childEntry(number)
					mu.Lock()
					handed[number] = true
					mu.Unlock()
					b := &storage.Batch{Payloads: e.payloads()}
					if err := log.Append(ctx, b); err != nil {
						return
					}
					// The power may be gone: then an answer given before is on its way
					// to us, and still an answer.
					mu.Lock()
					for i := range e.sizes {
						o := b.First + storage.Offset(i)
						if old, ok := acked[o]; ok {
							failed = fmt.Errorf("offset %d given to %+v and to %+v", o, old, ref{number, i})
						}
						acked[o] = ref{number, i}
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if failed != nil {
			return errors.Join(fmt.Errorf("life %d: %w", life, failed), log.Close(ctx))
		}
		durable := log.Durable()
		if err := log.Close(ctx); err != nil && !strict.Off() {
			return fmt.Errorf("life %d: close: %w", life, err)
		}
		restarted = power
		if power {
			strict = strict.Crash()
			if mode != storage.OnCommit {
				for o := range acked {
					if o >= durable {
						delete(acked, o)
					}
				}
			}
		} else {
			strict = strict.Kill()
		}
	}
	return nil
}

// checkConcurrent wants what was acknowledged, and nothing that was not handed over,
// and takes all of the log as acknowledged from now on.
func checkConcurrent(ctx context.Context, log *storage.Log, acked map[storage.Offset]ref, handed map[uint64]bool) error {
	found, err := readEntries(ctx, log)
	if err != nil {
		return err
	}
	for o, want := range acked {
		if got, ok := found[o]; !ok || got != want {
			return fmt.Errorf("offset %d: %+v was acknowledged, found %+v (%v) in [%d, %d)", o, want, got, ok, log.Head(), log.Next())
		}
	}
	for o, r := range found {
		if !handed[r.number] {
			return fmt.Errorf("offset %d: phantom of batch %x", o, r.number)
		}
		acked[o] = r
	}
	return nil
}
