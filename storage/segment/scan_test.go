package segment_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

// readers of every shape: whole reads, and a file that ends the last read with io.EOF.
func scanAll(t testing.TB, b []byte, from segment.ScanStart) ([]segment.RecordSpec, segment.ScanResult) {
	t.Helper()
	var specs []segment.RecordSpec
	res, err := segment.Scan(t.Context(), bytes.NewReader(b), int64(len(b)), from, func(r *segment.Record) error {
		s := specOf(r)
		s.Payload, s.Publisher = bytes.Clone(s.Payload), bytes.Clone(s.Publisher)
		if len(s.Payload) == 0 {
			s.Payload = []byte{}
		}
		specs = append(specs, s)
		return nil
	})
	require.NoError(t, err)
	return specs, res
}

func TestScanReturnsEveryRecord(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, maxPayload := range []int{0, 50, 5000, 290_000} {
		f := build(rng, 60, maxPayload)
		specs, res := scanAll(t, f.bytes, segment.ScanStart{})
		require.Nil(t, res.Damage)
		require.Equal(t, f.specs, specs)
		require.EqualValues(t, len(f.bytes), res.End)
		require.Equal(t, f.base+60, res.Next)
		var highest segment.Micros
		for _, s := range f.specs {
			highest = max(highest, s.Timestamp)
		}
		require.Equal(t, highest, res.MaxTimestamp)
		require.Equal(t, f.specs[59].Timestamp, res.LastTimestamp)

		i := rng.IntN(60)
		specs, res = scanAll(t, f.bytes, segment.ScanStart{Position: f.pos[i], Offset: f.base + segment.Offset(i)})
		require.Nil(t, res.Damage)
		require.Equal(t, f.specs[i:], specs)
	}
}

// Whatever byte is changed, the records before it are all found and nothing after the
// damage is: damage ends a scan at the damaged record.
func TestScanEndsAtDamage(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	f := build(rng, 12, 60)
	for at := segment.HeaderSize; at < len(f.bytes); at++ {
		b := bytes.Clone(f.bytes)
		b[at] ^= byte(1 + rng.IntN(255))
		specs, res := scanAll(t, b, segment.ScanStart{Shard: "a", Segment: 3})
		i := f.recordAt(int64(at))
		require.NotNil(t, res.Damage)
		require.Equal(t, f.pos[i], res.Damage.Position)
		require.Equal(t, f.pos[i], res.End)
		require.Equal(t, f.base+segment.Offset(i), res.Damage.Offset)
		require.Equal(t, segment.ID(3), res.Damage.Segment)
		require.Equal(t, f.specs[:i], append([]segment.RecordSpec{}, specs...))
	}
}

// Cut anywhere, a segment keeps its whole records, and the rest is a torn tail.
func TestScanOfEveryCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	f := build(rng, 12, 60)
	for n := segment.HeaderSize; n < len(f.bytes); n++ {
		i := f.recordAt(int64(n))
		_, res := scanAll(t, f.bytes[:n], segment.ScanStart{})
		require.EqualValues(t, i, res.Records)
		want := segment.TailTorn
		if left := f.bytes[f.pos[i]:n]; len(left) == 0 {
			want = segment.TailClean
		} else if len(bytes.Trim(left, "\x00")) == 0 {
			want = segment.TailZero
		}
		tail, err := segment.ClassifyTail(t.Context(), bytes.NewReader(f.bytes[:n]), int64(n), res)
		require.NoError(t, err)
		require.Equal(t, want, tail, "cut to %d", n)
	}
}

// A length that the file could not hold allocates nothing.
func TestScanBoundsItsBuffer(t *testing.T) {
	f := build(rand.New(rand.NewPCG(1, 1)), 3, 10)
	big := segment.AppendRecord(nil, &segment.RecordSpec{Offset: f.base + 3, Payload: make([]byte, 8<<20)})
	b := append(f.bytes, big[:1000]...)
	var before, after uint64
	before = allocated()
	_, res := scanAll(t, b, segment.ScanStart{})
	after = allocated()
	require.Equal(t, segment.Truncated, res.Damage.Kind)
	require.Less(t, after-before, uint64(1<<20))
}

func TestScanGrowsToOneRecord(t *testing.T) {
	b := segment.AppendHeader(nil, segment.Header{Version: 2})
	for i := range 3 {
		b = segment.AppendRecord(b, &segment.RecordSpec{Offset: segment.Offset(i), Payload: bytes.Repeat([]byte{byte(i)}, 3<<20)})
	}
	specs, res := scanAll(t, b, segment.ScanStart{})
	require.Nil(t, res.Damage)
	require.Len(t, specs, 3)
	require.EqualValues(t, 2, specs[2].Payload[3<<20-1])
}

func TestScanErrors(t *testing.T) {
	f := build(rand.New(rand.NewPCG(1, 1)), 3, 10)
	r, size := bytes.NewReader(f.bytes), int64(len(f.bytes))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := segment.Scan(ctx, r, size, segment.ScanStart{}, nil)
	require.ErrorIs(t, err, context.Canceled)

	mine := errors.New("mine")
	res, err := segment.Scan(t.Context(), r, size, segment.ScanStart{}, func(*segment.Record) error { return mine })
	require.ErrorIs(t, err, mine)
	require.Equal(t, f.base, res.Next)

	seen := 0
	_, err = segment.Scan(t.Context(), r, size, segment.ScanStart{}, func(*segment.Record) error {
		seen++
		return segment.ErrStop
	})
	require.NoError(t, err)
	require.Equal(t, 1, seen)

	// A failing read is no damage, and neither is a file shorter than it was said to be.
	_, err = segment.Scan(t.Context(), failingReader{}, size, segment.ScanStart{}, nil)
	require.ErrorIs(t, err, errDisk)
	_, err = segment.Scan(t.Context(), r, size+100, segment.ScanStart{}, nil)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

var errDisk = errors.New("disk")

type failingReader struct{}

func (failingReader) ReadAt([]byte, int64) (int, error) { return 0, errDisk }
