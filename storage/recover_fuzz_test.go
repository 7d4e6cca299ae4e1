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
// order, every record that stands before the first damage is served, and opening again
// changes nothing; if it refuses, no byte was changed.
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
		for i, r := range intactRecords(a, b) {
			if err != nil {
				// A page ends where damage is met, in a sealed segment that Open did not read
				// whole; what stands before it is served by itself.
				var p Page
				if err := l.Read(ctx, &p, ReadRange{From: r.Offset, MaxRecords: 1}); err != nil || len(p.Records) != 1 {
					t.Fatalf("offset %d stood before the damage: %d records, %v", r.Offset, len(p.Records), err)
				}
				records = append(records[:i], string(p.Records[0].Payload))
			}
			if i == 0 && l.Head() != r.Offset {
				t.Fatalf("the log begins at %d, was %d", l.Head(), r.Offset)
			}
			if i >= len(records) || records[i] != string(r.Payload) {
				t.Fatalf("offset %d is gone, or not what it was: %d records of [%d, %d), report %+v", r.Offset, len(records), l.Head(), l.Next(), l.Recovery())
			}
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

// intactRecords reads two segments the plain way: the records up to the first byte that
// is none, but for zeros at the end of a segment that the next goes on from.
func intactRecords(segments ...[]byte) []Record {
	var out []Record
	var next Offset
	for i, b := range segments {
		h, err := segment.DecodeHeader(b)
		if err != nil || i > 0 && h.BaseOffset != next {
			return out
		}
		next = h.BaseOffset
		b = b[segment.HeaderSize:]
		for len(b) > 0 {
			r, n, err := segment.DecodeRecord(b, next)
			if err != nil || r.LeastVersion() > h.Version {
				break
			}
			out, b, next = append(out, r), b[n:], next+1
		}
		if len(bytes.Trim(b, "\x00")) > 0 {
			return out
		}
	}
	return out
}
