package segment_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage/segment"
)

func TestRecordRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		s := randomSpec(rng, segment.Offset(rng.Uint64()), 300)
		require.NoError(t, s.Validate())
		b := segment.AppendRecord([]byte("before"), &s)
		require.Equal(t, "before", string(b[:6]))
		b = b[6:]
		require.Len(t, b, s.Size())
		r, n, err := segment.DecodeRecord(append(b, "after"...), s.Offset)
		require.NoError(t, err, "record %d", i)
		require.Equal(t, len(b), n)
		require.Equal(t, b, segment.AppendRecord(nil, new(specOf(&r))))
		require.Equal(t, crc32.ChecksumIEEE(b[:20]), r.HeaderCRC)
		require.Equal(t, crc32.Update(crc32.ChecksumIEEE(b[:24]), crc32.IEEETable, b[28:]), r.Checksum)
		require.Equal(t, len(s.Publisher) > 0, r.HasPublisher)
	}
}

// Every flip of a single bit is found, and so is every cut.
func TestRecordDamageIsFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		s := randomSpec(rng, 77, 40)
		good := segment.AppendRecord(nil, &s)
		for bit := range len(good) * 8 {
			b := bytes.Clone(good)
			b[bit/8] ^= 1 << (bit % 8)
			_, _, err := segment.DecodeRecord(b, 77)
			kind := segment.RecordChecksum
			if bit < 24*8 {
				kind = segment.RecordHeaderChecksum
			}
			requireKind(t, err, kind)
		}
		for n := range good {
			_, _, err := segment.DecodeRecord(good[:n], 77)
			requireKind(t, err, segment.Truncated)
		}
	}
}

// reseal puts right checksums over bytes a test has changed.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[20:], crc32.ChecksumIEEE(b[:20]))
	binary.BigEndian.PutUint32(b[24:], crc32.Update(crc32.ChecksumIEEE(b[:24]), crc32.IEEETable, b[28:]))
	return b
}

func TestRecordRefusals(t *testing.T) {
	record := func(word uint32, body string) []byte {
		b := make([]byte, 28, 28+len(body))
		binary.BigEndian.PutUint32(b, word)
		binary.BigEndian.PutUint64(b[4:], 5)
		return reseal(append(b, body...))
	}
	gen := "\x00\x00\x00\x00\x00\x00\x00\x01"
	for _, c := range []struct {
		name string
		b    []byte
		kind segment.CorruptionKind
		text string
	}{
		{"offset", segment.AppendRecord(nil, &segment.RecordSpec{Offset: 6}), segment.OffsetOutOfOrder, "found offset 6"},
		{"one over the limit", record(segment.MaxBodySize+1, ""), segment.RecordTooLarge, "length 67108865"},
		{"length of all ones", record(1<<27-1, ""), segment.RecordTooLarge, ""},
		{"two kinds", record(3<<30, ""), segment.RecordFlags, "two kinds"},
		{"all kinds", record(0xf0000000, ""), segment.RecordFlags, "two kinds"},
		{"publisher of an empty body", record(1<<27, ""), segment.RecordBody, "publisher"},
		{"publisher longer than the body", record(1<<27|3, "ab\x03"), segment.RecordBody, "publisher of 3"},
		{"generation of 7 bytes", record(1<<29|7, gen[:7]), segment.RecordBody, "generation"},
		{"generation of 9 bytes", record(1<<29|9, gen+"x"), segment.RecordBody, "generation"},
		{"empty commit", record(1<<28, ""), segment.RecordBody, "commit"},
		{"commit version 2", record(1<<28|9, "\x02\x00\x00\x00\x00\x00\x00\x00\x00"), segment.RecordBody, "commit version 2"},
		{"event past the body", record(1<<28|5, "\x01\xff\xff\xff\xff"), segment.RecordBody, "event"},
		{"event just past the body", record(1<<28|7, "\x01\x00\x00\x00\x03ab"), segment.RecordBody, "event"},
		{"no count", record(1<<28|5, "\x01\x00\x00\x00\x00"), segment.RecordBody, "count"},
		{"count of four billion", record(1<<28|9, "\x01\x00\x00\x00\x00\xff\xff\xff\xff"), segment.RecordBody, "operation 1 of 4294967295"},
		{"unknown operation", record(1<<28|10, "\x01\x00\x00\x00\x00\x00\x00\x00\x01\x02"), segment.RecordBody, "code 2"},
		{"key past the body", record(1<<28|11, "\x01\x00\x00\x00\x00\x00\x00\x00\x01\x01x"), segment.RecordBody, "key"},
		{"no value", record(1<<28|14, "\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00"), segment.RecordBody, "value"},
		{"bytes after the commit", record(1<<28|10, "\x01\x00\x00\x00\x00\x00\x00\x00\x00x"), segment.RecordBody, "1 bytes after"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := segment.DecodeRecord(c.b, 5)
			got := requireKind(t, err, c.kind)
			require.Contains(t, got.Detail, c.text)
			require.EqualValues(t, 5, got.Offset)
		})
	}
	r, _, err := segment.DecodeRecord(record(1<<27|1, "\x00"), 5)
	require.NoError(t, err)
	require.True(t, r.HasPublisher)
	require.Empty(t, r.Publisher)
}

func TestRecordLimits(t *testing.T) {
	s := segment.RecordSpec{Payload: make([]byte, segment.MaxBodySize)}
	require.NoError(t, s.Validate())
	b := segment.AppendRecord(nil, &s)
	_, n, err := segment.DecodeRecord(b, 0)
	require.NoError(t, err)
	require.Equal(t, segment.RecordHeaderSize+segment.MaxBodySize, n)

	s.Publisher = []byte("p")
	require.ErrorIs(t, s.Validate(), segment.ErrBodyTooLarge)
	require.Panics(t, func() { segment.AppendRecord(nil, &s) })
	s = segment.RecordSpec{Publisher: make([]byte, segment.MaxPublisherSize+1)}
	require.ErrorIs(t, s.Validate(), segment.ErrPublisherTooLong)
	require.ErrorIs(t, (&segment.RecordSpec{Kind: 9}).Validate(), segment.ErrKind)
	require.Panics(t, func() { segment.AppendRecord(nil, &segment.RecordSpec{Kind: 9}) })
	require.Error(t, (&segment.RecordSpec{Kind: segment.KindGenerationStart}).Validate())
	require.Error(t, (&segment.RecordSpec{Kind: segment.KindCommit}).Validate())
}

// A kind in a segment of too low a version is refused, in every combination.
func TestKindsNeedTheirVersion(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		s := randomSpec(rng, 3, 20)
		for v := segment.MinVersion; v <= segment.MaxVersion; v++ {
			b := segment.AppendHeader(nil, segment.Header{Version: v, BaseOffset: 3})
			b = segment.AppendRecord(b, &s)
			res, err := segment.Scan(t.Context(), bytes.NewReader(b), int64(len(b)), segment.ScanStart{}, nil)
			require.NoError(t, err)
			if s.LeastVersion() <= v {
				require.Nil(t, res.Damage)
				require.Equal(t, max(segment.MinVersion, s.LeastVersion()), res.NeedVersion)
				continue
			}
			require.NotNil(t, res.Damage, "%v in version %d", s.Kind, v)
			require.Equal(t, segment.RecordFlags, res.Damage.Kind)
		}
	}
}

func TestCommitBody(t *testing.T) {
	c := segment.Commit{Event: []byte("e"), Ops: []segment.CommitOp{
		{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Delete: true}, {Key: []byte{}, Value: []byte{}},
	}}
	event, ops, err := segment.CommitBody(segment.AppendCommit(nil, &c))
	require.NoError(t, err)
	require.Equal(t, c.Event, event)
	var got []segment.CommitOp
	for op := range ops {
		got = append(got, op)
	}
	require.Equal(t, c.Ops, got)
	_, _, err = segment.CommitBody([]byte{1})
	requireKind(t, err, segment.RecordBody)
}

func TestAppendAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 4096)
	payload := make([]byte, 128)
	publisher := []byte("alice")
	require.Zero(t, heap.Allocs(100, func() {
		b := segment.AppendRecord(buf, &segment.RecordSpec{Offset: 1, Timestamp: 2, Payload: payload})
		b = segment.AppendRecord(b, &segment.RecordSpec{Offset: 2, Kind: segment.KindProducerFirst, Payload: payload, Publisher: publisher})
		if _, _, err := segment.DecodeRecord(b, 1); err != nil {
			t.Error(err)
		}
	}))
}

func TestSegmentHeaderRefusals(t *testing.T) {
	good := segment.AppendHeader(nil, segment.Header{Version: 3, BaseOffset: 9})
	for _, c := range []struct {
		name string
		edit func(b []byte) []byte
		kind segment.CorruptionKind
		text string
	}{
		{"magic", func(b []byte) []byte { b[0] = 'X'; return b }, segment.HeaderMagic, "not a segment"},
		{"version 1", func(b []byte) []byte { b[5] = 1; return b }, segment.HeaderVersion, "version 1 is not supported"},
		{"version 7", func(b []byte) []byte { b[5] = 7; return b }, segment.HeaderVersion, "version 7 is not supported"},
		{"flags", func(b []byte) []byte {
			b[7] = 1
			binary.BigEndian.PutUint32(b[24:], crc32.ChecksumIEEE(b[:24]))
			return b
		}, segment.HeaderFlags, "0001"},
		{"checksum", func(b []byte) []byte { b[15] ^= 1; return b }, segment.HeaderChecksum, "stored"},
		{"short", func(b []byte) []byte { return b[:31] }, segment.HeaderTruncated, "31 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := c.edit(bytes.Clone(good))
			_, err := segment.DecodeHeader(b)
			require.Contains(t, requireKind(t, err, c.kind).Detail, c.text)
			res, err := segment.Scan(t.Context(), bytes.NewReader(b), int64(len(b)), segment.ScanStart{}, nil)
			require.NoError(t, err)
			require.Equal(t, c.kind, res.Damage.Kind)
			require.Zero(t, res.End)
		})
	}
}
