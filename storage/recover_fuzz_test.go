package storage

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

// FuzzRecoverDirectory opens directories with arbitrary bytes in them. Whatever they are:
// it ends without a panic; if it opens, every record served is one that was written, in
// order, and opening again changes nothing; if it refuses, no byte was changed.
func FuzzRecoverDirectory(f *testing.F) {
	first, second := segmentBytes(0, 6), segmentBytes(6, 6)
	mark := segment.AppendMark(nil, segment.Mark{Segment: 1, SyncedBytes: 100})
	f.Add(first, second, mark, uint16(0), byte(0), byte(0))
	f.Add(first, second[:len(second)-5], mark, uint16(3), byte(0x80), byte(1))
	f.Add(first, append(bytes.Clone(second), make([]byte, 600)...), []byte{}, uint16(0), byte(0), byte(2))
	f.Add(first[:len(first)-1], second, mark, uint16(70), byte(1), byte(3))
	f.Add(first, make([]byte, 100), mark, uint16(0), byte(0), byte(1))
	f.Add(first, []byte{}, []byte("FLSM"), uint16(0), byte(0), byte(7))
	f.Fuzz(func(t *testing.T, a, b, mark []byte, at uint16, xor, flags byte) {
		if len(a)+len(b) > 1<<16 {
			return
		}
		d := disk.NewStrict(1, disk.Options{})
		whole := append(bytes.Clone(a), b...)
		if len(whole) > 0 {
			whole[int(at)%len(whole)] ^= xor
		}
		a, b = whole[:len(a)], whole[len(a):]
		d.Put(logPath(0), a)
		d.Put(logPath(1), b)
		if flags&8 == 0 {
			d.Put(testDir+"/"+segment.MarkName, mark)
		}
		if flags&16 != 0 {
			d.Put(indexPath(0), b)
		}
		before := d.Files()
		o := manual(d, OnCommit)
		o.Restarted, o.RepairChecksumTail, o.VerifyAllOnOpen = flags&1 != 0, flags&2 != 0, flags&4 != 0
		l, err := Open(ctx, testDir, o)
		if err != nil {
			var damaged *DamagedError
			if !errors.As(err, &damaged) {
				t.Fatalf("refused without a reason: %v", err)
			}
			if x := diff(before, d.Files()); len(x) > 0 {
				t.Fatalf("refused (%v) and changed %v", err, x)
			}
			return
		}
		records, err := tryReadAll(l)
		if err != nil && !errors.As(err, new(*DamagedError)) {
			t.Fatal(err)
		}
		for _, r := range records {
			if len(r) > 0 && !bytes.Contains(whole, []byte(r)) {
				t.Fatalf("record %q was never written", r)
			}
		}
		if err := l.Append(ctx, &Batch{Payloads: [][]byte{[]byte("after")}}); err != nil {
			t.Fatal(err)
		}
		next := l.Next()
		d = d.Kill()
		o.FS = d
		l, err = Open(ctx, testDir, o)
		if err != nil {
			t.Fatalf("did not open again: %v", err)
		}
		if l.Next() != next {
			t.Fatalf("next is %d, was %d", l.Next(), next)
		}
		seen := d.Files()
		o.FS = d.Kill()
		if l, err = Open(ctx, testDir, o); err != nil {
			t.Fatal(err)
		}
		if x := diff(seen, o.FS.(*disk.Strict).Files()); len(x) > 0 {
			t.Fatal(fmt.Sprint("the third open changed ", x))
		}
		if err := l.Close(ctx); err != nil {
			t.Fatal(err)
		}
	})
}
