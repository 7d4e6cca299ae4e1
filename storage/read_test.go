package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

func TestReadBudgets(t *testing.T) {
	_, o := builtLog(t, 200, small)
	o.MaxRecordsPerRead = 50
	l := openClosed(t, testDir, o)
	size := len(payload(0))
	var p Page
	read := func(r ReadRange) int {
		t.Helper()
		require.NoError(t, l.Read(ctx, &p, r))
		for i, rec := range p.Records {
			require.Equal(t, r.From+Offset(i), rec.Offset)
			require.Equal(t, payload(int(rec.Offset)), rec.Payload)
		}
		require.Equal(t, r.From+Offset(len(p.Records)), p.Next)
		return len(p.Records)
	}
	require.Equal(t, 50, read(ReadRange{From: 0}), "the log's cap")
	require.Equal(t, 50, read(ReadRange{From: 13, MaxRecords: 60}), "the log's cap")
	require.Equal(t, 7, read(ReadRange{From: 13, MaxRecords: 7}))
	require.Equal(t, 30, read(ReadRange{From: 10, MaxBytes: 30 * size}), "one budget over several segments")
	require.Equal(t, 30, read(ReadRange{From: 10, MaxBytes: 31*size - 1}))
	require.Equal(t, 1, read(ReadRange{From: 10, MaxBytes: 1}), "at least one")
	require.Equal(t, 5, read(ReadRange{From: 10, End: 15}))
	require.Equal(t, 1, read(ReadRange{From: 199}))
	require.Equal(t, 0, read(ReadRange{From: 200}))
	require.Equal(t, 0, read(ReadRange{From: 1 << 63}))
	require.Equal(t, 0, read(ReadRange{From: 20, End: 20}))
	require.Equal(t, 0, read(ReadRange{From: 20, End: 10}))
	require.NoError(t, l.Read(ctx, &p, ReadRange{From: ^Offset(0)}))
	require.Empty(t, p.Records)
}

func TestReadStopsAtStable(t *testing.T) {
	l := openClosed(t, testDir, manual(disk.NewStrict(1, disk.Options{}), OnCommit))
	appendN(t, l, 0, 3)
	enqueue(t, l, &Batch{Payloads: [][]byte{payload(3)}})
	require.True(t, l.Step())
	var p Page
	require.NoError(t, l.Read(ctx, &p, ReadRange{}))
	require.Len(t, p.Records, 3)
	require.NoError(t, l.Read(ctx, &p, ReadRange{Limit: LimitWritten}))
	require.Len(t, p.Records, 4)
	require.NoError(t, l.Read(ctx, &p, ReadRange{From: 3}))
	require.Empty(t, p.Records)
	settleAll(l)
	require.NoError(t, l.Read(ctx, &p, ReadRange{From: 3}))
	require.Len(t, p.Records, 1)
}

// TestReadAfterIndexWentBad: an index that was good at open and is not any more costs a
// rebuild, not an answer.
func TestReadAfterIndexWentBad(t *testing.T) {
	d, o := builtLog(t, 300, small)
	o.Disk = nil
	l := openClosed(t, testDir, o)
	l.disk.indexes.limit = 0
	var rebuilt []SegmentID
	l.opt.Events.OnIndexRebuilt = func(_ string, id SegmentID, _ string) { rebuilt = append(rebuilt, id) }
	good, _ := fileOn(d, indexPath(2))
	bad := segment.NewIndex(l.list.Load().all[2].base, 128)
	bad.Add(l.list.Load().all[2].base, segment.HeaderSize)
	bad.Add(l.list.Load().all[2].base+2, segment.HeaderSize+130)
	d.Put(indexPath(2), bad.AppendTo(nil))
	var p Page
	from := l.list.Load().all[2].base + 5
	require.NoError(t, l.Read(ctx, &p, ReadRange{From: from, MaxRecords: 1}))
	require.Equal(t, payload(int(from)), p.Records[0].Payload)
	require.Equal(t, []SegmentID{2}, rebuilt)
	now, _ := fileOn(d, indexPath(2))
	require.Equal(t, good, now)
}

type memorySource struct {
	segs map[Offset]*SourceSegment
	open int
}

func (m *memorySource) Oldest(context.Context) (Offset, bool) { return 0, true }

func (m *memorySource) Segment(_ context.Context, off Offset) (*SourceSegment, error) {
	for _, s := range m.segs {
		if off >= s.Base && off < s.Next {
			m.open++
			c := *s
			c.Close = func() error { m.open--; return nil }
			return &c, nil
		}
	}
	return nil, errors.New("no such segment")
}

// TestColderSource: what was trimmed here is read from where it was copied to, in one
// read with what is left here.
func TestColderSource(t *testing.T) {
	d, o := builtLog(t, 200, small)
	src := &memorySource{segs: map[Offset]*SourceSegment{}}
	o.Colder = src
	l := openClosed(t, testDir, o)
	for _, s := range l.Segments() {
		if s.Sealed {
			b, _ := fileOn(d, logPath(s.ID))
			src.segs[s.Base] = &SourceSegment{Descriptor: s, Content: bytes.NewReader([]byte(b))}
		}
	}
	_, err := l.TrimHead(ctx, 120)
	require.NoError(t, err)
	require.Greater(t, l.Head(), Offset(50))
	var p Page
	require.NoError(t, l.Read(ctx, &p, ReadRange{From: 0}))
	require.Len(t, p.Records, 200)
	for i, r := range p.Records {
		require.Equal(t, payload(i), r.Payload)
	}
	require.Zero(t, src.open)
}

func TestOffsetForTime(t *testing.T) {
	clock := newTestClock()
	o := manual(disk.NewStrict(1, disk.Options{}), None)
	small(&o)
	o.Clock = clock.Now
	l := openClosed(t, testDir, o)
	off, ok, err := l.OffsetForTime(ctx, 0)
	require.NoError(t, err)
	require.False(t, ok)
	require.Zero(t, off)
	times := make([]Micros, 0, 150)
	for i := range 150 {
		clock.Set(2_000_000_000 + Micros(i)*10)
		b := &Batch{Payloads: [][]byte{payload(i)}}
		require.NoError(t, l.Append(ctx, b))
		times = append(times, b.Timestamp)
	}
	for i, at := range times {
		for _, m := range []Micros{at, at - 5} {
			off, ok, err := l.OffsetForTime(ctx, m)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, Offset(i), off, "%d", m)
		}
	}
	off, ok, err = l.OffsetForTime(ctx, times[149]+1)
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, Offset(150), off)
}

func TestTimesNeverDescend(t *testing.T) {
	clock := newTestClock()
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, None)
	o.Clock = clock.Now
	l := mustOpen(t, testDir, o)
	clock.Set(5_000_000_000)
	appendN(t, l, 0, 1)
	clock.Set(4_999_000_000)
	appendN(t, l, 1, 3)
	require.NoError(t, l.Close(ctx))
	l = openClosed(t, testDir, o)
	appendN(t, l, 4, 1)
	require.Len(t, l.Segments(), 1)
	var p Page
	require.NoError(t, l.Read(ctx, &p, ReadRange{}))
	for i := 1; i < len(p.Records); i++ {
		require.Equal(t, p.Records[0].Timestamp, p.Records[i].Timestamp)
	}
}

func TestRetention(t *testing.T) {
	clock := newTestClock()
	open := func(t *testing.T) *Log {
		o := manual(disk.NewStrict(1, disk.Options{}), None)
		small(&o)
		o.Clock = clock.Now
		l := openClosed(t, testDir, o)
		appendN(t, l, 0, 200)
		settleAll(l)
		return l
	}
	total := func(l *Log) (n int64) {
		for _, s := range l.Segments() {
			n += s.Bytes
		}
		return n
	}
	t.Run("bytes", func(t *testing.T) {
		l := open(t)
		var trims []RetentionResult
		l.opt.Events.OnTrim = func(_ string, r RetentionResult) { trims = append(trims, r) }
		l.SetRetention(RetentionPolicy{Bytes: 3000})
		require.False(t, l.Step(), "not yet")
		clock.Advance(Micros(time.Minute / time.Microsecond))
		settleAll(l)
		require.LessOrEqual(t, total(l), int64(3000))
		require.Greater(t, total(l), int64(1800))
		require.Len(t, trims, 1)
		require.Equal(t, l.Head(), trims[0].Head)
		require.Equal(t, wantPayloads(int(l.Head()), 200), readAll(t, l))
	})
	t.Run("smaller than a segment", func(t *testing.T) {
		l := open(t)
		l.SetRetention(RetentionPolicy{Bytes: 1})
		_, err := l.EnforceRetention(ctx, 0)
		require.NoError(t, err)
		require.Len(t, l.Segments(), 1, "the active one stays")
		require.NotEmpty(t, readAll(t, l))
	})
	t.Run("limit and hold", func(t *testing.T) {
		l := open(t)
		l.SetRetention(RetentionPolicy{Bytes: 1, Limit: func() Offset { return 90 }})
		release := l.Hold(60)
		_, err := l.EnforceRetention(ctx, 0)
		require.NoError(t, err)
		require.LessOrEqual(t, l.Head(), Offset(60))
		require.Greater(t, l.Head(), Offset(30))
		release()
		_, err = l.EnforceRetention(ctx, 0)
		require.NoError(t, err)
		require.LessOrEqual(t, l.Head(), Offset(90))
		require.Greater(t, l.Head(), Offset(60))
		_, err = l.EnforceRetention(ctx, 120)
		require.NoError(t, err)
		require.LessOrEqual(t, l.Head(), Offset(120))
		require.Greater(t, l.Head(), Offset(90))
	})
	t.Run("age rolls a quiet segment", func(t *testing.T) {
		l := open(t)
		l.SetRetention(RetentionPolicy{Age: time.Hour, Interval: time.Minute})
		clock.Advance(Micros(30 * time.Minute / time.Microsecond))
		settleAll(l)
		require.Zero(t, l.Head())
		clock.Advance(Micros(31 * time.Minute / time.Microsecond))
		settleAll(l)
		require.Equal(t, Offset(200), l.Head(), "age means age")
		require.Empty(t, readAll(t, l))
		appendN(t, l, 200, 1)
		require.Equal(t, wantPayloads(200, 201), readAll(t, l))
	})
}

func TestSealGivesTheOffloadUnit(t *testing.T) {
	d := disk.NewStrict(1, disk.Options{})
	l := openClosed(t, testDir, manual(d, None))
	_, err := l.Seal(ctx)
	require.ErrorIs(t, err, ErrNothingToSeal)
	appendN(t, l, 0, 10)
	s, err := l.Seal(ctx)
	require.NoError(t, err)
	b, _ := fileOn(d, logPath(s.ID))
	require.Equal(t, crc32.ChecksumIEEE([]byte(b)), s.CRC32)
	require.EqualValues(t, len(b), s.Bytes)
	require.Equal(t, Offset(0), s.Base)
	require.Equal(t, Offset(10), s.Next)
	require.True(t, s.Sealed)
	require.Equal(t, Offset(10), l.Durable())
	again, err := l.Seal(ctx)
	require.NoError(t, err)
	require.Equal(t, s, again, "nothing new to seal")
	appendN(t, l, 10, 1)
	require.Equal(t, wantPayloads(0, 11), readAll(t, l))
}

func TestSideFiles(t *testing.T) {
	l := openClosed(t, testDir, manual(disk.NewStrict(1, disk.Options{}), None))
	_, err := l.ReadSide(segment.ProducersName)
	require.Error(t, err)
	require.NoError(t, l.WriteSide(ctx, segment.ProducersName, []byte("x")))
	b, err := l.ReadSide(segment.ProducersName)
	require.NoError(t, err)
	require.Equal(t, "x", string(b))
	require.NoError(t, l.RemoveSide(ctx, segment.ProducersName))
	require.NoError(t, l.RemoveSide(ctx, segment.ProducersName))
	for _, name := range []string{"../x", "durable.mark", segment.SegmentName(0), "lost", ""} {
		require.Error(t, l.WriteSide(ctx, name, nil), name)
		_, err := l.ReadSide(name)
		require.Error(t, err, name)
	}
}

func TestOpenRefusesAGap(t *testing.T) {
	d := disk.NewStrict(1, disk.Options{})
	d.Put(logPath(0), segmentBytes(0, 5))
	d.Put(logPath(1), segmentBytes(6, 5))
	before := d.Files()
	_, err := Open(ctx, testDir, manual(d, None))
	var c *segment.Corruption
	require.ErrorAs(t, err, &c)
	require.Equal(t, segment.OffsetOutOfOrder, c.Kind)
	requireSameFiles(t, before, d.Files())
}

func TestOpenWithBase(t *testing.T) {
	d := disk.NewStrict(1, disk.Options{})
	o := manual(d, OnCommit)
	o.Base = 1000
	l := mustOpen(t, testDir, o)
	require.True(t, l.Recovery().Created)
	require.Equal(t, Offset(1000), mustAppend(t, l, plain("a")))
	require.NoError(t, l.Close(ctx))
	o.Base = 7
	l = openClosed(t, testDir, o)
	require.False(t, l.Recovery().Created)
	require.Equal(t, Offset(1000), l.Head())
	require.Equal(t, Offset(1001), l.Next())
}

func TestSealedZeroTailIsTrimmed(t *testing.T) {
	d, o := builtLog(t, 100, small)
	b, _ := fileOn(d, logPath(1))
	d.Put(logPath(1), append([]byte(b), make([]byte, 5000)...))
	l := openClosed(t, testDir, o)
	require.EqualValues(t, 5000, l.Recovery().TruncatedBytes)
	after, _ := fileOn(d, logPath(1))
	require.Equal(t, b, after)
	require.Equal(t, wantPayloads(0, 100), readAll(t, l))
}

func TestUnfinishedRolls(t *testing.T) {
	for name, content := range map[string][]byte{"empty": {}, "short": make([]byte, 31), "half a header": segmentBytes(100, 0)[:20], "zero": make([]byte, 4096)} {
		d, o := builtLog(t, 100, small)
		last := o.FS.(*disk.Strict)
		var newest SegmentID
		for {
			if _, ok := fileOn(last, logPath(newest)); !ok {
				break
			}
			newest++
		}
		d.Put(logPath(newest), content)
		l := mustOpen(t, testDir, o)
		_, there := fileOn(d, logPath(newest))
		require.False(t, there, name)
		require.Equal(t, wantPayloads(0, 100), readAll(t, l), name)
		appendN(t, l, 100, 50)
		require.NoError(t, l.Close(ctx))
		// An empty file between two that meet goes as well.
	}
	d := disk.NewStrict(1, disk.Options{})
	d.Put(logPath(0), segmentBytes(0, 5))
	d.Put(logPath(1), []byte{1, 2})
	d.Put(logPath(2), segmentBytes(5, 5))
	l := openClosed(t, testDir, manual(d, None))
	require.Equal(t, wantPayloads(0, 10), readAll(t, l))
	_, there := fileOn(d, logPath(1))
	require.False(t, there)
}

// TestPastTheMarkAfterARestart: damage that was never reported durable is an unfinished
// write after a power cut, and only then.
func TestPastTheMarkAfterARestart(t *testing.T) {
	build := func() (*disk.Strict, Options, SegmentID) {
		d, o := builtLog(t, 100, small)
		s, _ := fileOn(d, logPath(2))
		b := []byte(s)
		b[len(b)/2] ^= 1
		d.Put(logPath(2), b)
		return d, o, 2
	}
	for _, tc := range []struct {
		restarted bool
		mark      *segment.Mark
		opens     bool
	}{
		{true, &segment.Mark{Segment: 2, SyncedBytes: 100}, true},
		{true, &segment.Mark{Segment: 1, SyncedBytes: 100}, true},
		{true, &segment.Mark{Segment: 2, SyncedBytes: 1 << 20}, false},
		{true, &segment.Mark{Segment: 3, SyncedBytes: 100}, false},
		{true, nil, false},
		{false, &segment.Mark{Segment: 1, SyncedBytes: 100}, false},
	} {
		t.Run(fmt.Sprintf("%v %v", tc.restarted, tc.mark), func(t *testing.T) {
			d, o, id := build()
			require.NoError(t, d.Remove(testDir+"/"+segment.MarkName))
			require.NoError(t, d.Remove(indexPath(id)))
			if tc.mark != nil {
				d.Put(testDir+"/"+segment.MarkName, segment.AppendMark(nil, *tc.mark))
			}
			before := d.Files()
			o.Restarted = tc.restarted
			l, err := Open(ctx, testDir, o)
			if !tc.opens {
				require.Error(t, err)
				requireSameFiles(t, before, d.Files())
				return
			}
			require.NoError(t, err)
			all := readAll(t, l)
			require.Equal(t, wantPayloads(0, len(all)), all)
			require.Less(t, len(all), 100)
			require.Positive(t, l.Recovery().MovedSegments)
			require.NoError(t, l.Close(ctx))
		})
	}
}
