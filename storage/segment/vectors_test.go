package segment_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/stream"
	"github.com/felixlog/felix/storage/segment"
)

// vector is an entry of testdata/storage.json, whose bytes were made apart from this
// implementation.
type vector struct {
	Name       string          `json:"name"`
	Hex        string          `json:"hex"`
	BaseOffset uint64          `json:"base_offset"`
	CreatedAt  uint64          `json:"created_at_micros"`
	Version    uint16          `json:"version"`
	Offset     uint64          `json:"offset"`
	Timestamp  uint64          `json:"timestamp_micros"`
	Payload    string          `json:"payload_utf8"`
	ProducerID string          `json:"producer_id"`
	Sequence   uint64          `json:"sequence"`
	Len        uint32          `json:"len"`
	Generation uint64          `json:"generation"`
	Commit     uint64          `json:"commit"`
	Event      string          `json:"event_utf8"`
	Publisher  string          `json:"publisher"`
	Verdict    string          `json:"verdict"`
	Entries    [][2]uint64     `json:"entries"`
	Segment    uint64          `json:"segment"`
	Synced     int64           `json:"synced_bytes"`
	AsOf       uint64          `json:"as_of"`
	Digest     string          `json:"digest_of_a_b"`
	Records    json.RawMessage `json:"records"`
	Positions  []int64         `json:"positions"`
	Spacing    int64           `json:"index_spacing_bytes"`
	ZerosAfter int             `json:"zeros_after"`
}

func (v *vector) bytes(t testing.TB) []byte {
	b, err := hex.DecodeString(v.Hex)
	require.NoError(t, err)
	return append(b, make([]byte, v.ZerosAfter)...)
}

func loadVectors(t testing.TB) map[string]*vector {
	b, err := os.ReadFile("testdata/storage.json")
	require.NoError(t, err)
	var list []*vector
	require.NoError(t, json.Unmarshal(b, &list))
	m := make(map[string]*vector)
	for _, v := range list {
		m[v.Name] = v
	}
	require.Len(t, m, len(list))
	return m
}

// vectorTests has a test for each entry of storage.json; an entry without one fails.
var vectorTests = map[string]func(*testing.T, *vector){
	"segment_header_v2": headerVector, "segment_header_v3": headerVector, "segment_header_v4": headerVector,
	"segment_header_v5": headerVector, "segment_header_v6": headerVector,

	"record_plain": recordVector(func(v *vector, s *segment.RecordSpec) {}),
	"record_empty": recordVector(func(v *vector, s *segment.RecordSpec) {}),
	"record_producer_first": recordVector(func(v *vector, s *segment.RecordSpec) {
		id, _ := strconv.ParseUint(v.ProducerID, 0, 64)
		s.Kind = segment.KindProducerFirst
		s.Producer = segment.ProducerTag{ID: id, Sequence: v.Sequence, Len: v.Len}
	}),
	"record_producer_next": recordVector(func(v *vector, s *segment.RecordSpec) { s.Kind = segment.KindProducerNext }),
	"record_generation_start": recordVector(func(v *vector, s *segment.RecordSpec) {
		s.Kind = segment.KindGenerationStart
		s.Payload = binary.BigEndian.AppendUint64(nil, v.Generation)
	}),
	"record_commit": recordVector(func(v *vector, s *segment.RecordSpec) {
		s.Kind = segment.KindCommit
		s.Payload = segment.AppendCommit(nil, &segment.Commit{
			Event: []byte(v.Event),
			Ops: []segment.CommitOp{
				{Key: []byte("k1"), Value: []byte("v1")},
				{Key: []byte("k2"), Delete: true},
			},
		})
	}),
	"record_publisher":         recordVector(func(v *vector, s *segment.RecordSpec) { s.Publisher = []byte(v.Publisher) }),
	"record_two_kinds_refused": twoKindsVector,

	"index_two_entries": indexVector,
	"durable_mark":      markVector,
	"replica":           replicaVector,
	"epochs":            epochsVector,
	"producers":         producersVector,

	// The payloads of caches are opaque to a segment: their codec's own test reads these.
	"cache_put": opaqueVector, "cache_delete": opaqueVector, "cache_put_v2": opaqueVector,

	"segment_file_v2_six_records":           wholeSegmentVector,
	"index_file_of_it_spacing_64":           builtIndexVector,
	"segment_file_cut_by_1":                 damagedVector(segment.Truncated, segment.TailTorn, 5),
	"segment_file_cut_by_10":                damagedVector(segment.Truncated, segment.TailTorn, 5),
	"segment_file_cut_by_28":                damagedVector(segment.Truncated, segment.TailTorn, 5),
	"segment_file_cut_by_29":                damagedVector(segment.Truncated, segment.TailTorn, 5),
	"segment_file_zero_padded":              damagedVector(segment.RecordHeaderChecksum, segment.TailZero, 6),
	"segment_file_last_payload_flipped":     damagedVector(segment.RecordChecksum, segment.TailDamaged, 5),
	"segment_file_interior_length_flipped":  damagedVector(segment.RecordHeaderChecksum, segment.TailInterior, 2),
	"segment_file_interior_payload_flipped": damagedVector(segment.RecordChecksum, segment.TailInterior, 2),
}

func TestVectors(t *testing.T) {
	for name, v := range loadVectors(t) {
		t.Run(name, func(t *testing.T) {
			test := vectorTests[name]
			require.NotNil(t, test, "no test for this vector")
			test(t, v)
		})
	}
}

func headerVector(t *testing.T, v *vector) {
	h := segment.Header{
		Version: segment.Version(v.Version), BaseOffset: segment.Offset(v.BaseOffset), CreatedAt: segment.Micros(v.CreatedAt),
	}
	require.Equal(t, v.bytes(t), segment.AppendHeader(nil, h))
	got, err := segment.DecodeHeader(v.bytes(t))
	require.NoError(t, err)
	require.Equal(t, h, got)
}

func recordVector(fill func(*vector, *segment.RecordSpec)) func(*testing.T, *vector) {
	return func(t *testing.T, v *vector) {
		s := segment.RecordSpec{Offset: segment.Offset(v.Offset), Timestamp: segment.Micros(v.Timestamp), Payload: []byte(v.Payload)}
		fill(v, &s)
		require.NoError(t, s.Validate())
		want := v.bytes(t)
		require.Equal(t, want, segment.AppendRecord(nil, &s))
		require.Equal(t, len(want), s.Size())

		r, n, err := segment.DecodeRecord(want, s.Offset)
		require.NoError(t, err)
		require.Equal(t, len(want), n)
		require.Equal(t, s, specOf(&r))
		require.Equal(t, s.LeastVersion(), r.LeastVersion())
		if v.Event != "" {
			event, ok := r.Visible()
			require.True(t, ok)
			require.Equal(t, v.Event, string(event))
		}
		if v.Generation != 0 {
			require.Equal(t, segment.Generation(v.Generation), r.Generation())
			_, ok := r.Visible()
			require.False(t, ok)
		}
	}
}

// specOf is the spec that encodes to r's bytes.
func specOf(r *segment.Record) segment.RecordSpec {
	return segment.RecordSpec{
		Offset: r.Offset, Timestamp: r.Timestamp, Kind: r.Kind, Producer: r.Producer, Payload: r.Payload, Publisher: r.Publisher,
	}
}

func twoKindsVector(t *testing.T, v *vector) {
	_, _, err := segment.DecodeRecord(v.bytes(t), 13)
	requireKind(t, err, segment.RecordFlags)
	require.Equal(t, v.Verdict, segment.RecordFlags.String())
}

func requireKind(t testing.TB, err error, kind segment.CorruptionKind) *segment.Corruption {
	t.Helper()
	c, ok := errors.AsType[*segment.Corruption](err)
	require.True(t, ok, "not a corruption: %v", err)
	require.Equal(t, kind, c.Kind, "%v", err)
	return c
}

func indexVector(t *testing.T, v *vector) {
	x := segment.NewIndex(segment.Offset(v.BaseOffset), 4096)
	for _, e := range v.Entries {
		require.True(t, x.Add(segment.Offset(e[0]), int64(e[1])))
	}
	require.Equal(t, v.bytes(t), x.AppendTo(nil))
	got, err := segment.DecodeIndex(v.bytes(t), x.Base(), 4096, 8192)
	require.NoError(t, err)
	require.Equal(t, x.Entries(), got.Entries())
}

func markVector(t *testing.T, v *vector) {
	m := segment.Mark{Segment: segment.ID(v.Segment), SyncedBytes: v.Synced}
	require.Equal(t, v.bytes(t), segment.AppendMark(nil, m))
	got, err := segment.DecodeMark(v.bytes(t))
	require.NoError(t, err)
	require.Equal(t, m, got)
}

func replicaVector(t *testing.T, v *vector) {
	s := segment.ReplicaState{Generation: segment.Generation(v.Generation), Commit: segment.Offset(v.Commit)}
	require.Equal(t, v.bytes(t), segment.AppendReplica(nil, s))
	got, err := segment.DecodeReplica(v.bytes(t))
	require.NoError(t, err)
	require.Equal(t, s, got)
}

func epochsVector(t *testing.T, v *vector) {
	var starts []segment.GenerationStart
	for _, e := range v.Entries {
		starts = append(starts, segment.GenerationStart{Generation: segment.Generation(e[0]), Start: segment.Offset(e[1])})
	}
	require.Equal(t, v.bytes(t), segment.AppendEpochs(nil, starts))
	got, err := segment.DecodeEpochs(v.bytes(t))
	require.NoError(t, err)
	require.Equal(t, starts, got)
}

func producersVector(t *testing.T, v *vector) {
	digest := stream.Digest([][]byte{[]byte("a"), []byte("b")})
	want, err := strconv.ParseUint(v.Digest, 0, 64)
	require.NoError(t, err)
	require.Equal(t, want, digest)
	s := &segment.ProducerSnapshot{
		AsOf: segment.Offset(v.AsOf),
		Producers: []segment.ProducerEntry{{
			ID: 0xf1e2d3c4b5a69788, LastSequence: 3,
			Batches: []segment.ProducerBatch{{First: 8, Len: 2, Digest: segment.Digest{Known: true, Value: digest}}},
		}},
	}
	require.Equal(t, v.bytes(t), segment.AppendProducers(nil, s))
	got, err := segment.DecodeProducers(v.bytes(t))
	require.NoError(t, err)
	require.Equal(t, s, got)
}

func opaqueVector(t *testing.T, v *vector) {
	s := segment.RecordSpec{Offset: 1, Timestamp: 2, Payload: v.bytes(t)}
	r, _, err := segment.DecodeRecord(segment.AppendRecord(nil, &s), 1)
	require.NoError(t, err)
	require.Equal(t, v.bytes(t), r.Payload)
}

// sixRecords encodes the records of the vector segment.
func sixRecords(t testing.TB, v *vector) []byte {
	var records [][3]any
	require.NoError(t, json.Unmarshal(v.Records, &records))
	b := segment.AppendHeader(nil, segment.Header{Version: segment.VersionPlain, BaseOffset: 0, CreatedAt: 999})
	for _, r := range records {
		b = segment.AppendRecord(b, &segment.RecordSpec{
			Offset: segment.Offset(r[0].(float64)), Timestamp: segment.Micros(r[1].(float64)), Payload: []byte(r[2].(string)),
		})
	}
	return b
}

func wholeSegmentVector(t *testing.T, v *vector) {
	b := v.bytes(t)
	require.Equal(t, b, sixRecords(t, v))
	var positions []int64
	at := int64(segment.HeaderSize)
	res, err := segment.Scan(t.Context(), bytes.NewReader(b), int64(len(b)), segment.ScanStart{}, func(r *segment.Record) error {
		require.EqualValues(t, len(positions), r.Offset)
		positions = append(positions, at)
		at += int64(r.Size)
		return nil
	})
	require.NoError(t, err)
	require.Nil(t, res.Damage)
	require.Equal(t, v.Positions, positions)
	require.EqualValues(t, len(b), res.End)
	require.EqualValues(t, 6, res.Next)
	require.EqualValues(t, 1000, res.FirstTimestamp)
	require.EqualValues(t, 1005, res.LastTimestamp)
	require.EqualValues(t, 1005, res.MaxTimestamp)
	require.Equal(t, segment.VersionPlain, res.NeedVersion)
	require.EqualValues(t, 999, res.Header.CreatedAt)
}

func builtIndexVector(t *testing.T, v *vector) {
	file := loadVectors(t)["segment_file_v2_six_records"].bytes(t)
	x := segment.NewIndex(0, v.Spacing)
	_, err := segment.Scan(t.Context(), bytes.NewReader(file), int64(len(file)), segment.ScanStart{Index: x}, nil)
	require.NoError(t, err)
	require.Equal(t, v.bytes(t), x.AppendTo(nil))
	require.Equal(t, len(v.bytes(t)), x.EncodedSize())
	got, err := segment.DecodeIndex(v.bytes(t), 0, v.Spacing, int64(len(file)))
	require.NoError(t, err)
	require.Equal(t, x, got)
}

func damagedVector(kind segment.CorruptionKind, tail segment.Tail, kept int) func(*testing.T, *vector) {
	return func(t *testing.T, v *vector) {
		b := v.bytes(t)
		good := loadVectors(t)["segment_file_v2_six_records"]
		res, err := segment.Scan(t.Context(), bytes.NewReader(b), int64(len(b)), segment.ScanStart{Shard: "s", Segment: 7}, nil)
		require.NoError(t, err)
		require.NotNil(t, res.Damage)
		require.Equal(t, kind, res.Damage.Kind)
		end := int64(len(good.bytes(t)))
		if kept < len(good.Positions) {
			end = good.Positions[kept]
		}
		require.Equal(t, end, res.End)
		require.Equal(t, end, res.Damage.Position)
		require.EqualValues(t, kept, res.Records)
		require.EqualValues(t, kept, res.Damage.Offset)
		require.Contains(t, res.Damage.Error(), "shard s: 00000000000000000007.log: position "+strconv.FormatInt(end, 10))
		got, err := segment.ClassifyTail(t.Context(), bytes.NewReader(b), int64(len(b)), res)
		require.NoError(t, err)
		require.Equal(t, tail, got)
	}
}
