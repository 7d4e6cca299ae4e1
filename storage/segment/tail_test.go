package segment_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func classify(t *testing.T, b []byte) (segment.Tail, segment.ScanResult) {
	t.Helper()
	_, res := scanAll(t, b, segment.ScanStart{})
	tail, err := segment.ClassifyTail(t.Context(), bytes.NewReader(b), int64(len(b)), res)
	require.NoError(t, err)
	return tail, res
}

// plainSegment holds records of the given payload sizes, of bytes that are not zero.
func plainSegment(sizes ...int) (b []byte, pos []int64) {
	b = segment.AppendHeader(nil, segment.Header{Version: 2})
	for i, n := range sizes {
		pos = append(pos, int64(len(b)))
		b = segment.AppendRecord(b, &segment.RecordSpec{
			Offset: segment.Offset(i), Timestamp: 0x0101010101010101, Payload: bytes.Repeat([]byte{0xab}, n),
		})
	}
	return b, append(pos, int64(len(b)))
}

func TestZerosAfterTheLastRecord(t *testing.T) {
	b, _ := plainSegment(10, 20, 30)
	for _, n := range []int{1, 27, 28, 29, 511, 512, 4096, 64 << 10, 300 << 10} {
		tail, res := classify(t, append(bytes.Clone(b), make([]byte, n)...))
		require.Equal(t, segment.TailZero, tail, "%d zeros", n)
		require.EqualValues(t, len(b), res.End)
	}
	// A non-zero byte after the zeros makes it something else.
	tail, _ := classify(t, append(append(bytes.Clone(b), make([]byte, 4096)...), 1))
	require.Equal(t, segment.TailDamaged, tail)
}

func TestZerosFromASectorInsideTheRecord(t *testing.T) {
	b, pos := plainSegment(100, 3000)
	last := pos[1]
	for sector := (last/512 + 1) * 512; sector < int64(len(b)); sector += 512 {
		for _, more := range []int{0, 1000} {
			z := append(bytes.Clone(b), make([]byte, more)...)
			clear(z[sector:])
			tail, res := classify(t, z)
			require.Equal(t, segment.TailZero, tail, "zeros from %d", sector)
			require.Equal(t, last, res.End)
		}
	}
	// Zeros that begin off a boundary inside the last sector explain nothing.
	z := bytes.Clone(b)
	clear(z[len(z)-3:])
	require.NotZero(t, len(z)%512)
	tail, res := classify(t, z)
	require.Equal(t, segment.TailDamaged, tail)
	require.Equal(t, segment.RecordChecksum, res.Damage.Kind)
	// Non-zero bytes after the zeroed sector: not a zero-filled tail.
	z = bytes.Clone(b)
	clear(z[1024:1536])
	tail, _ = classify(t, z)
	require.Equal(t, segment.TailDamaged, tail)
}

func TestZerosFromASectorInsideTheHeader(t *testing.T) {
	// The last record's header straddles byte 512.
	for split := 1; split < segment.RecordHeaderSize; split++ {
		b, pos := plainSegment(512-32-28-split, 700)
		require.EqualValues(t, 512-split, pos[1])
		clear(b[512:])
		tail, res := classify(t, b)
		require.Equal(t, segment.TailZero, tail, "split %d: %v", split, res.Damage)
		require.Equal(t, pos[1], res.End)
	}
}

func TestInteriorDamageIsNoTail(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	f := build(rng, 8, 400)
	for at := segment.HeaderSize; at < len(f.bytes); at++ {
		b := bytes.Clone(f.bytes)
		b[at] ^= 0x10
		tail, res := classify(t, b)
		want := segment.TailInterior
		if f.recordAt(int64(at)) == 7 {
			want = segment.TailDamaged
		}
		require.Equal(t, want, tail, "byte %d: %v", at, res.Damage)
	}
}

// Two damaged records in a row do not hide the good ones after them.
func TestInteriorDamageOfSeveralRecords(t *testing.T) {
	b, pos := plainSegment(100, 100, 100, 100, 100)
	for _, off := range []int64{0, 30} {
		z := bytes.Clone(b)
		z[pos[1]+off] ^= 1
		z[pos[2]+off] ^= 1
		tail, _ := classify(t, z)
		require.Equal(t, segment.TailInterior, tail)
	}
}

// A record whose header alone is good is not a good record.
func TestRecordWithAGoodHeaderIsNotEnough(t *testing.T) {
	b, pos := plainSegment(100, 100, 100)
	b[pos[1]+40] ^= 1
	b[pos[2]+40] ^= 1
	tail, _ := classify(t, b)
	require.Equal(t, segment.TailDamaged, tail)
}

// The search for good records misses none that lies across two of its reads.
func TestInteriorDamageAcrossReads(t *testing.T) {
	for n := 256<<10 - 90; n < 256<<10; n += 9 {
		b, pos := plainSegment(10, n, 5)
		b[pos[1]] ^= 1 // the header: the search begins right behind it
		tail, _ := classify(t, b)
		require.Equal(t, segment.TailInterior, tail, "payload of %d", n)
	}
}

// A payload that holds encoded records is not taken for the log's own.
func TestRecordsInsideAPayloadAreNotFound(t *testing.T) {
	inner, _ := plainSegment(10, 10, 10)
	b := segment.AppendHeader(nil, segment.Header{Version: 2, BaseOffset: 1 << 32})
	b = segment.AppendRecord(b, &segment.RecordSpec{Offset: 1 << 32, Payload: inner})
	b[33] ^= 1
	tail, _ := classify(t, b)
	require.Equal(t, segment.TailDamaged, tail)
}

func TestOtherDamageAtTheTail(t *testing.T) {
	b, _ := plainSegment(10, 20)
	head := func(word uint32, offset uint64, body int) []byte {
		r := make([]byte, 28+body)
		binary.BigEndian.PutUint32(r, word)
		binary.BigEndian.PutUint64(r[4:], offset)
		return reseal(r)
	}
	for _, c := range []struct {
		name string
		tail []byte
		kind segment.CorruptionKind
	}{
		{"offset", head(600, 9, 600), segment.OffsetOutOfOrder},
		{"too large", head(segment.MaxBodySize+1, 2, 100), segment.RecordTooLarge},
		{"two kinds", head(3<<29|8, 2, 8), segment.RecordFlags},
		{"version", head(1<<30, 2, 0), segment.RecordFlags},
	} {
		t.Run(c.name, func(t *testing.T) {
			tail, res := classify(t, append(bytes.Clone(b), c.tail...))
			require.Equal(t, c.kind, res.Damage.Kind)
			require.Equal(t, segment.TailDamaged, tail)
		})
	}
	// The log going on after a record of another offset is good records after damage.
	other, _ := plainSegment(1, 1, 1, 1, 1)
	tail, res := classify(t, append(bytes.Clone(b), other[segment.HeaderSize:]...))
	require.Equal(t, segment.OffsetOutOfOrder, res.Damage.Kind)
	require.Equal(t, segment.TailInterior, tail)
}

func TestHeaderState(t *testing.T) {
	good, _ := plainSegment(10)
	for _, c := range []struct {
		name string
		b    []byte
		want segment.HeaderFinding
	}{
		{"good", good, segment.HeaderGood},
		{"empty", nil, segment.HeaderShort},
		{"31 bytes", good[:31], segment.HeaderShort},
		{"zeros", make([]byte, 32), segment.HeaderZero},
		{"many zeros", make([]byte, 200<<10), segment.HeaderZero},
		{"zero header, then a byte", append(make([]byte, 200<<10), 1), segment.HeaderBad},
		{"other bytes", bytes.Repeat([]byte("x"), 40), segment.HeaderBad},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, h, why, err := segment.HeaderState(t.Context(), bytes.NewReader(c.b), int64(len(c.b)))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == segment.HeaderBad, why != nil)
			if got == segment.HeaderGood {
				require.Equal(t, segment.VersionPlain, h.Version)
			}
		})
	}
}
