package segment_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

// FuzzRecordDecode: any bytes give a record or a corruption, never a panic; what decodes
// takes no more than is there and encodes to the same bytes; memory stays bounded.
func FuzzRecordDecode(f *testing.F) {
	for _, v := range loadVectors(f) {
		if v.Offset > 0 || v.Name == "record_empty" {
			f.Add(v.bytes(f), v.Offset)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, want uint64) {
		r, n, err := segment.DecodeRecord(b, segment.Offset(want))
		if err != nil {
			require.True(t, isCorruption(err), "%v", err)
			return
		}
		require.LessOrEqual(t, n, len(b))
		require.Equal(t, n, r.Size)
		r.Visible()
		r.Generation()
		if r.HasPublisher && len(r.Publisher) == 0 {
			return // read, never written
		}
		s := specOf(&r)
		require.NoError(t, s.Validate())
		require.Equal(t, b[:n], segment.AppendRecord(nil, &s))
	})
}

// FuzzRecordResealed does the same with checksums made right, so that bodies are reached.
func FuzzRecordResealed(f *testing.F) {
	for _, v := range loadVectors(f) {
		if v.Offset > 0 {
			f.Add(v.bytes(f), v.Offset)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, want uint64) {
		if len(b) < segment.RecordHeaderSize || len(b) > 1<<20 {
			return
		}
		b = bytes.Clone(b)
		// Make the length what is there, keeping the kind.
		body := len(b) - segment.RecordHeaderSize
		if b[0]&0x80 != 0 {
			body = max(0, body-segment.ProducerTagSize)
		}
		b[0] = b[0]&0xf8 | byte(body>>24)
		b[1], b[2], b[3] = byte(body>>16), byte(body>>8), byte(body)
		for i := range 8 {
			b[4+i] = byte(want >> (56 - 8*i))
		}
		reseal(b)
		r, n, err := segment.DecodeRecord(b, segment.Offset(want))
		if err != nil {
			require.True(t, isCorruption(err), "%v", err)
			return
		}
		if event, visible := r.Visible(); visible && r.Kind == segment.KindCommit {
			again, ops, err := segment.CommitBody(r.Payload)
			require.NoError(t, err)
			require.Equal(t, event, again)
			c := segment.Commit{Event: event}
			for op := range ops {
				c.Ops = append(c.Ops, op)
			}
			require.Equal(t, r.Payload, segment.AppendCommit(nil, &c))
		}
		if r.HasPublisher && len(r.Publisher) == 0 {
			return
		}
		s := specOf(&r)
		require.Equal(t, b[:n], segment.AppendRecord(nil, &s))
	})
}

// FuzzSegmentScan puts any bytes after good records. The scan returns all good ones and
// stops there or later; scan, classification, paged read and index agree; nothing
// allocates by a length that was not verified.
func FuzzSegmentScan(f *testing.F) {
	good, pos := plainSegment(10, 0, 600, 100)
	f.Add([]byte{}, uint16(0), byte(0))
	f.Add(make([]byte, 600), uint16(40), byte(1))
	f.Add(good[pos[1]:], uint16(700), byte(0x80))
	f.Add(segment.AppendRecord(nil, &segment.RecordSpec{Offset: 4, Payload: []byte("x")}), uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, garbage []byte, at uint16, flip byte) {
		b := append(bytes.Clone(good), garbage...)
		intact := 4
		if p := int64(at); p < int64(len(b)) && flip != 0 {
			b[p] ^= flip
			intact = 0
			for intact < 4 && pos[intact+1] <= p {
				intact++
			}
			if p < segment.HeaderSize {
				intact = 0
			}
		}
		x := segment.NewIndex(0, 64)
		r, size := bytes.NewReader(b), int64(len(b))
		var seen []segment.RecordSpec
		before := allocated()
		res, err := segment.Scan(t.Context(), r, size, segment.ScanStart{Index: x}, func(r *segment.Record) error {
			s := specOf(r)
			s.Payload, s.Publisher = bytes.Clone(s.Payload), bytes.Clone(s.Publisher)
			seen = append(seen, s)
			return nil
		})
		require.NoError(t, err)
		require.Less(t, allocated()-before, uint64(4<<20+8*len(b)))
		require.GreaterOrEqual(t, len(seen), intact, "a good record was lost")
		require.EqualValues(t, len(seen), res.Records)
		tail, err := segment.ClassifyTail(t.Context(), r, size, res)
		require.NoError(t, err)
		require.Equal(t, res.Damage == nil, tail == segment.TailClean)
		require.Equal(t, res.Damage == nil, res.End == size)
		if res.End == 0 {
			return
		}

		// What was kept, scanned again, is whole and the same.
		again := segment.NewIndex(0, 64)
		res2, err := segment.Scan(t.Context(), bytes.NewReader(b[:res.End]), res.End, segment.ScanStart{Index: again}, nil)
		require.NoError(t, err)
		require.Nil(t, res2.Damage)
		require.Equal(t, res.Next, res2.Next)
		require.Equal(t, x.AppendTo(nil), again.AppendTo(nil))
		if _, err := segment.DecodeIndex(x.AppendTo(nil), 0, 64, res.End); x.Len() > 0 {
			require.NoError(t, err)
		}
		var page segment.ReadBuffer
		_, err = segment.ReadInto(t.Context(), r, segment.ScanStart{Position: segment.HeaderSize, Version: res.Header.Version},
			segment.ReadLimits{EndPosition: size, MaxBytes: 1 << 30}, &page)
		require.Equal(t, res.Damage != nil, err != nil)
		require.Len(t, page.Records, len(seen))
	})
}

// FuzzIndexLoad: any bytes are refused or ascend, begin at the base and stay in the file,
// and encode to what was read but for the version written.
func FuzzIndexLoad(f *testing.F) {
	v := loadVectors(f)
	f.Add(v["index_two_entries"].bytes(f), uint64(100), int64(8192))
	f.Add(v["index_file_of_it_spacing_64"].bytes(f), uint64(0), int64(260))
	f.Fuzz(func(t *testing.T, b []byte, base uint64, size int64) {
		x, err := segment.DecodeIndex(b, segment.Offset(base), 64, size)
		if err != nil {
			require.True(t, isCorruption(err), "%v", err)
			return
		}
		entries := x.Entries()
		for i, e := range entries {
			require.LessOrEqual(t, e.Position, size-segment.RecordHeaderSize)
			if i == 0 {
				require.Equal(t, segment.IndexEntry{Offset: segment.Offset(base), Position: segment.HeaderSize}, e)
				continue
			}
			require.GreaterOrEqual(t, e.Position, entries[i-1].Position+64)
			require.Greater(t, e.Offset, entries[i-1].Offset)
		}
		got := x.AppendTo(nil)
		require.Equal(t, b[:4], got[:4])
		require.Equal(t, b[24:], got[24:])
	})
}

// FuzzSideFiles: any bytes are refused or read, and what is read encodes to bytes that
// read as the same.
func FuzzSideFiles(f *testing.F) {
	v := loadVectors(f)
	for _, name := range []string{"durable_mark", "replica", "epochs", "producers"} {
		f.Add(v[name].bytes(f))
	}
	f.Add(segment.AppendProducers(nil, someProducers))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := allocated()
		if m, err := segment.DecodeMark(b); err == nil {
			require.Equal(t, b[:28], segment.AppendMark(nil, m)[:28])
		}
		if s, err := segment.DecodeReplica(b); err == nil {
			require.Equal(t, b[24:], segment.AppendReplica(nil, s)[24:])
		}
		if s, err := segment.DecodeEpochs(b); err == nil {
			require.Equal(t, b, segment.AppendEpochs(nil, s))
		}
		if s, err := segment.DecodeProducers(b); err == nil {
			require.Equal(t, b[8:], segment.AppendProducers(nil, s)[8:])
		}
		require.Less(t, allocated()-before, uint64(4<<20+16*len(b)))
	})
}

func isCorruption(err error) bool {
	_, ok := errors.AsType[*segment.Corruption](err)
	return ok
}
