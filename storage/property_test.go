package storage

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/testkit/disk"
)

// logModel is what a log should be: records by offset, from head on.
type logModel struct {
	head    Offset
	records []string // of offsets head..
	times   []Micros
}

func (m *logModel) next() Offset { return m.head + Offset(len(m.records)) }

// TestLogAgainstModel runs random scripts of appends, refusals, failures, trims,
// truncations, restarts and reads, and compares with the model after each step.
func TestLogAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		strict := disk.NewStrict(rapid.Uint64().Draw(t, "seed"), disk.Options{})
		faulty := disk.NewFaulty(strict)
		clock := newTestClock()
		o := Options{
			FS: faulty, Manual: true, Clock: clock.Now,
			Fsync:        rapid.SampledFrom([]FsyncMode{None, Periodic, OnCommit}).Draw(t, "fsync"),
			SegmentBytes: rapid.SampledFrom([]int64{MinSegmentBytes, 3000, 1 << 20}).Draw(t, "segment"),
			IndexSpacing: rapid.SampledFrom([]int64{64, 500, 4096}).Draw(t, "spacing"),
			Preallocate:  rapid.Bool().Draw(t, "preallocate"),
			ZeroAhead:    rapid.Bool().Draw(t, "zero"),
		}
		l, err := Open(ctx, testDir, o)
		if err != nil {
			t.Fatal(err)
		}
		m := &logModel{}
		number := 0
		batch := func(t *rapid.T) *Batch {
			b := &Batch{}
			for range rapid.IntRange(1, 4).Draw(t, "records") {
				b.Payloads = append(b.Payloads, fmt.Appendf(nil, "%d:%s", number, make([]byte, rapid.IntRange(0, 300).Draw(t, "size"))))
				number++
			}
			if rapid.IntRange(0, 4).Draw(t, "producer") == 0 {
				b.HasProducer = true
				b.Producer = ProducerTag{ID: 1, Sequence: uint64(number), Len: uint32(len(b.Payloads))}
			}
			return b
		}
		took := func(b *Batch) {
			if b.First != m.next() {
				t.Fatalf("got offset %d, %d was next", b.First, m.next())
			}
			for _, p := range b.Payloads {
				m.records = append(m.records, string(p))
				m.times = append(m.times, b.Timestamp)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				b := batch(t)
				if err := l.Append(ctx, b); err != nil {
					t.Fatal(err)
				}
				took(b)
			},
			"append several": func(t *rapid.T) {
				var bs []*Batch
				for range rapid.IntRange(2, 5).Draw(t, "batches") {
					b := batch(t)
					if rapid.IntRange(0, 3).Draw(t, "wrong") == 0 {
						b.HasExpected, b.Expected = true, m.next()+1000
					}
					bs = append(bs, b)
					if err := l.Enqueue(b); err != nil {
						t.Fatal(err)
					}
				}
				settleAll(l)
				for _, b := range bs {
					var mismatch *OffsetMismatchError
					switch {
					case b.HasExpected:
						if !errors.As(b.Err, &mismatch) || mismatch.Tail != m.next() {
							t.Fatalf("%v where %d is next", b.Err, m.next())
						}
					case b.Err != nil:
						t.Fatal(b.Err)
					default:
						took(b)
					}
				}
			},
			"failed write": func(t *rapid.T) {
				rule := faulty.Add(disk.Rule{Op: disk.OpWrite, Path: "*.log", Action: disk.Short(rapid.IntRange(0, 50).Draw(t, "n"), syscall.EIO)})
				b := batch(t)
				if err := l.Append(ctx, b); rule.Hits() > 0 && !errors.Is(err, ErrNotWritten) {
					// Zeros ahead may be what failed, or a header that was written again.
					if err != nil {
						t.Fatalf("got %v", err)
					}
					took(b)
				}
				rule.Remove()
			},
			"failed flush": func(t *rapid.T) {
				rule := faulty.Add(disk.Rule{Op: disk.OpDatasync, Path: "*.log", Action: disk.Fail(syscall.EIO)})
				b := batch(t)
				err := l.Append(ctx, b)
				if err == nil {
					took(b)
					err = l.Sync(ctx)
				} else {
					b.First = m.next()
					took(b) // the disk kept what it was given: reopening brings it back
				}
				if rule.Hits() > 0 && err == nil {
					t.Fatal("a failed flush went unnoticed")
				}
				rule.Remove()
				if err := l.Reopen(ctx); err != nil {
					t.Fatal(err)
				}
				m.times = nil
				m.times = timesOf(t, l, m)
			},
			"step": func(t *rapid.T) {
				clock.Advance(Micros(rapid.IntRange(0, 2_000_000).Draw(t, "advance")))
				settleAll(l)
			},
			"trim": func(t *rapid.T) {
				to := m.head + Offset(rapid.IntRange(0, len(m.records)).Draw(t, "to"))
				res, err := l.TrimHead(ctx, to)
				if err != nil {
					t.Fatal(err)
				}
				if res.Head > to && res.Head > m.head {
					t.Fatalf("trimmed to %d, asked for %d", res.Head, to)
				}
				n := int(l.Head() - m.head)
				m.head, m.records, m.times = l.Head(), m.records[n:], m.times[n:]
			},
			"retain": func(t *rapid.T) {
				l.SetRetention(RetentionPolicy{Bytes: int64(rapid.IntRange(0, 5000).Draw(t, "bytes")), Age: time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Second})
				if _, err := l.EnforceRetention(ctx, 0); err != nil {
					t.Fatal(err)
				}
				l.SetRetention(RetentionPolicy{})
				n := int(l.Head() - m.head)
				m.head, m.records, m.times = l.Head(), m.records[n:], m.times[n:]
			},
			"truncate": func(t *rapid.T) {
				n := rapid.IntRange(0, min(10, len(m.records))).Draw(t, "n")
				if err := l.TruncateTo(ctx, m.next()-Offset(n)); err != nil {
					t.Fatal(err)
				}
				m.records, m.times = m.records[:len(m.records)-n], m.times[:len(m.times)-n]
			},
			"seal": func(t *rapid.T) {
				s, err := l.Seal(ctx)
				if err != nil && !errors.Is(err, ErrNothingToSeal) {
					t.Fatal(err)
				}
				if err == nil && s.Next != m.next() {
					t.Fatalf("sealed up to %d, %d was next", s.Next, m.next())
				}
			},
			"restart": func(t *rapid.T) {
				if err := l.Close(ctx); err != nil {
					t.Fatal(err)
				}
				o.VerifyAllOnOpen = rapid.Bool().Draw(t, "verify")
				if l, err = Open(ctx, testDir, o); err != nil {
					t.Fatal(err)
				}
			},
			"kill": func(t *rapid.T) {
				settleAll(l)
				strict = strict.Kill()
				faulty = disk.NewFaulty(strict)
				o.FS = faulty
				if l, err = Open(ctx, testDir, o); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if l.Head() != m.head || l.Next() != m.next() || l.Written() != m.next() || l.Stable() != m.next() {
					t.Fatalf("log is [%d, %d), written %d, stable %d; model [%d, %d)", l.Head(), l.Next(), l.Written(), l.Stable(), m.head, m.next())
				}
				if l.Durable() > l.Written() {
					t.Fatalf("durable %d, written %d", l.Durable(), l.Written())
				}
				got, err := tryReadAll(l)
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(got) != fmt.Sprint(m.records) {
					t.Fatalf("read %d records, model has %d", len(got), len(m.records))
				}
				if len(m.records) == 0 {
					return
				}
				i := rapid.IntRange(0, len(m.records)-1).Draw(t, "look")
				want := i
				for want > 0 && m.times[want-1] >= m.times[i] {
					want--
				}
				off, ok, err := l.OffsetForTime(ctx, m.times[i])
				if err != nil || !ok || off != m.head+Offset(want) {
					t.Fatalf("offset for the time of %d: %d %v %v, want %d", m.head+Offset(i), off, ok, err, m.head+Offset(want))
				}
			},
		})
		if err := l.Close(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

func timesOf(t *rapid.T, l *Log, m *logModel) (out []Micros) {
	var p Page
	for off := m.head; off < m.next(); off = p.Next {
		if err := l.Read(ctx, &p, ReadRange{From: off}); err != nil || len(p.Records) == 0 {
			t.Fatalf("read %d of %d: %v", off, m.next(), err)
		}
		for _, r := range p.Records {
			out = append(out, r.Timestamp)
		}
	}
	return out
}
