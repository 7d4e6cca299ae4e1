package storage

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
)

// crashScript appends to a log in Manual mode until the power goes, and says what was
// acknowledged: payloads by offset, and what was tried beyond.
type crashScript struct {
	acked   map[Offset]string
	tried   map[string]bool
	durable Offset
}

func (s *crashScript) run(d *disk.Strict, o Options, appends int) {
	o.FS = d
	l, err := Open(ctx, testDir, o)
	if err != nil {
		return
	}
	for i := range appends {
		p := fmt.Sprintf("%s/%d", payload(i), l.Next())
		s.tried[p] = true
		b := &Batch{Payloads: [][]byte{[]byte(p)}}
		err := l.Append(ctx, b)
		if err == nil {
			s.acked[b.First] = p
		}
		s.durable = l.Durable()
		if d.Off() {
			return
		}
		if i%5 == 4 {
			for range 3 {
				l.Step()
			}
		}
	}
	if l.Close(ctx) == nil {
		s.durable = l.Durable()
	}
}

// check opens what survived and compares it with what was acknowledged.
func (s *crashScript) check(d *disk.Strict, o Options) error {
	o.FS = d
	o.Restarted = true
	l, err := Open(ctx, testDir, o)
	if err != nil {
		return err
	}
	got, err := tryReadAll(l)
	if err != nil {
		return err
	}
	must := s.durable
	if o.Fsync == OnCommit {
		for off := range s.acked {
			must = max(must, off+1)
		}
	}
	if Offset(len(got)) < must {
		return fmt.Errorf("%d records survived, %d were on the device", len(got), must)
	}
	for i, p := range got {
		if want, ok := s.acked[Offset(i)]; ok && want != p {
			return fmt.Errorf("record %d is %q, acknowledged was %q", i, p, want)
		}
		if !s.tried[p] {
			return fmt.Errorf("record %d is %q, which nobody appended", i, p)
		}
	}
	b := &Batch{Payloads: [][]byte{[]byte("after")}}
	if err := l.Append(ctx, b); err != nil {
		return err
	}
	if b.First != Offset(len(got)) {
		return fmt.Errorf("next offset is %d after %d records", b.First, len(got))
	}
	return l.Close(ctx)
}

func crashOptions(mode FsyncMode) Options {
	o := manual(nil, mode)
	o.SegmentBytes = MinSegmentBytes
	o.IndexSpacing = 128
	return o
}

// TestCrashAtEveryOperation cuts the power after each operation of a short script that
// rolls several times, under several outcomes of the cut, and looks twice.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, mode := range []FsyncMode{OnCommit, Periodic, None} {
		for _, variant := range []string{"plain", "preallocate", "zero ahead"} {
			t.Run(mode.String()+" "+variant, func(t *testing.T) {
				o := crashOptions(mode)
				o.Preallocate = variant == "preallocate"
				o.ZeroAhead = variant == "zero ahead"
				if o.ZeroAhead && mode != OnCommit {
					return
				}
				whole := disk.NewStrict(1, disk.Options{})
				full := &crashScript{acked: map[Offset]string{}, tried: map[string]bool{}}
				full.run(whole, o, 24)
				require.Len(t, full.acked, 24)
				ops := whole.Ops()
				require.Greater(t, ops, 24)
				for n := range ops {
					d := disk.NewStrict(uint64(n), disk.Options{})
					d.StopAfter(n)
					s := &crashScript{acked: map[Offset]string{}, tried: map[string]bool{}}
					s.run(d, o, 24)
					for seed := range uint64(2) {
						after := d.Fork(seed + 100).Crash()
						if err := s.check(after.Fork(seed), o); err != nil {
							t.Fatalf("power cut after operation %d of %d, seed %d: %v\n%s", n, ops, seed, err, tail(d.Trace(), 12))
						}
						if err := twice(after, o); err != nil {
							t.Fatalf("power cut after operation %d of %d, seed %d: %v", n, ops, seed, err)
						}
					}
				}
			})
		}
	}
}

// twice recovers, is killed, recovers again, and expects nothing to change.
func twice(d *disk.Strict, o Options) error {
	o.Restarted = true
	var seen []map[string]string
	for range 2 {
		o.FS = d
		l, err := Open(ctx, testDir, o)
		if err != nil {
			return err
		}
		if l.Health().State != StateServing {
			return errors.New("not serving")
		}
		seen = append(seen, d.Files())
		d = d.Kill()
	}
	if fmt.Sprint(seen[0]) != fmt.Sprint(seen[1]) {
		return fmt.Errorf("the second recovery changed something: %v", diff(seen[0], seen[1]))
	}
	return nil
}

func diff(a, b map[string]string) (out []string) {
	for n, x := range a {
		if y, ok := b[n]; !ok || x != y {
			out = append(out, fmt.Sprintf("%s: %d bytes, then %d (there: %v)", n, len(x), len(y), ok))
		}
	}
	for n := range b {
		if _, ok := a[n]; !ok {
			out = append(out, n+" appeared")
		}
	}
	return out
}

func tail(events []disk.Event, n int) (out string) {
	for _, e := range events[max(0, len(events)-n):] {
		out += e.String() + "\n"
	}
	return out
}
