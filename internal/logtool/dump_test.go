package logtool

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

func crc(b []byte) uint32 { return crc32.ChecksumIEEE(b) }

// A segment of every version, with a record of every kind it can hold.
func TestDumpEveryVersion(t *testing.T) {
	commit := segment.AppendCommit(nil, &segment.Commit{Event: []byte("ev"), Ops: []segment.CommitOp{
		{Key: []byte("k1"), Value: []byte("v1")}, {Key: []byte("k2"), Delete: true},
	}})
	specs := []segment.RecordSpec{
		{Payload: []byte("plain")},
		{Payload: []byte{0, 1, 255}},
		{Kind: segment.KindProducerFirst, Producer: segment.ProducerTag{ID: 0xabc, Sequence: 3, Len: 2}, Payload: []byte("p1")},
		{Kind: segment.KindProducerNext, Payload: []byte("p2")},
		{Kind: segment.KindGenerationStart, Payload: binary.BigEndian.AppendUint64(nil, 5)},
		{Kind: segment.KindCommit, Payload: commit},
		{Payload: []byte("hello"), Publisher: []byte("alice")},
	}
	wantText := []string{
		"plain\t5 B\t\"plain\"", "plain\t3 B\t0001ff", "producer-first\t2 B\tproducer=0000000000000abc sequence=3 len=2\t\"p1\"",
		"producer-next\t2 B\t\"p2\"", "generation-start\t8 B\tgeneration=5", "\t\"ev\"\tput \"k1\"\t\"v1\"\tdelete \"k2\"",
		"plain\t5 B\tpublisher=\"alice\"\t\"hello\"",
	}
	for version := segment.MinVersion; version <= segment.MaxVersion; version++ {
		dir := t.TempDir()
		b := segment.AppendHeader(nil, segment.Header{Version: version, BaseOffset: 40})
		var want []string
		offset := segment.Offset(40)
		for i, s := range specs {
			if s.LeastVersion() > version {
				continue
			}
			s.Offset, s.Timestamp = offset, 1_700_000_000_000_000
			b = segment.AppendRecord(b, &s)
			want = append(want, wantText[i])
			offset++
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(3)), b, 0o600))
		_, err := tool(t, "verify", "--dir", dir)
		require.NoError(t, err)
		for _, path := range []string{dir, filepath.Join(dir, segment.SegmentName(3))} {
			out, err := tool(t, "dump", "--dir", path)
			require.NoError(t, err)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			require.Len(t, lines, len(want))
			for i := range lines {
				require.Contains(t, lines[i], want[i])
				require.Contains(t, lines[i], "2023-11-14T22:13:20.000000Z")
			}
		}
	}
}

func TestDumpJSON(t *testing.T) {
	dir := t.TempDir()
	b := segment.AppendHeader(nil, segment.Header{Version: segment.MaxVersion})
	b = segment.AppendRecord(b, &segment.RecordSpec{Kind: segment.KindProducerFirst, Producer: segment.ProducerTag{ID: 7, Sequence: 8, Len: 9}, Payload: []byte("x"), Publisher: []byte("bob")})
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(0)), b, 0o600))
	out, err := tool(t, "dump", "--dir", dir, "--json")
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &line))
	require.Equal(t, "producer-first", line["kind"])
	require.Equal(t, map[string]any{"id": "0000000000000007", "sequence": 8.0, "len": 9.0}, line["producer"])
	require.Equal(t, "bob", line["publisher"])
	require.Equal(t, "eA==", line["payload"])
	require.Equal(t, 32.0, line["position"])
}

func TestDumpEndsAtDamage(t *testing.T) {
	dir := t.TempDir()
	pos := segmentFile(t, dir, 0, 0, 5, 10)
	edit(t, filepath.Join(dir, segment.SegmentName(0)), flip(pos[3]+30))
	out, err := tool(t, "dump", "--dir", dir)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "00000000000000000000.log: position 146: offset 3: RecordChecksum")
	require.Equal(t, 3, strings.Count(out, "\n"))
}

func TestDumpSideFiles(t *testing.T) {
	dir := t.TempDir()
	segmentFile(t, dir, 2, 9, 100, 200)
	for name, b := range map[string][]byte{
		segment.MarkName:      segment.AppendMark(nil, segment.Mark{Segment: 2, SyncedBytes: 77}),
		segment.ReplicaName:   segment.AppendReplica(nil, segment.ReplicaState{Generation: 4, Commit: 5}),
		segment.EpochsName:    segment.AppendEpochs(nil, []segment.GenerationStart{{Generation: 4, Start: 9}}),
		segment.ProducersName: segment.AppendProducers(nil, &segment.ProducerSnapshot{AsOf: 3, Producers: []segment.ProducerEntry{{ID: 1, LastSequence: 2}}}),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	for name, want := range map[string]string{
		segment.MarkName:      "segment 2, 77 bytes synced",
		segment.ReplicaName:   "generation 4, committed to 5",
		segment.EpochsName:    "generation 4 from offset 9",
		segment.ProducersName: "producer 0000000000000001, last sequence 2, 0 batches",
		segment.IndexName(2):  "segment from offset 9\noffset 9 at 32\noffset 27 at 4136\n",
	} {
		out, err := tool(t, "dump", "--dir", filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, out, want)
		out, err = tool(t, "dump", "--dir", filepath.Join(dir, name), "--json")
		require.NoError(t, err)
		require.True(t, json.Valid([]byte(out)))
		edit(t, filepath.Join(dir, name), func(b []byte) []byte { return b[:10] })
		_, err = tool(t, "dump", "--dir", filepath.Join(dir, name))
		require.ErrorIs(t, err, ErrDamaged)
	}
	_, err := tool(t, "dump", "--dir", filepath.Join(dir, "nothing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = tool(t, "dump", "--dir", dir, "--payload", "loud")
	require.ErrorContains(t, err, "none of none, text, hex, full")
}

func TestDumpOfWhatWasCut(t *testing.T) {
	dir := t.TempDir()
	pos := segmentFile(t, dir, 4, 0, 6, 10)
	b, err := os.ReadFile(filepath.Join(dir, segment.SegmentName(4)))
	require.NoError(t, err)
	name := filepath.Join(dir, segment.LostDir, segment.SegmentName(4)+".from-"+segment.Offset(pos[3]).String())
	require.NoError(t, os.Mkdir(filepath.Dir(name), 0o700))
	require.NoError(t, os.WriteFile(name, b[pos[3]:len(b)-1], 0o600))
	out, err := tool(t, "dump", "--dir", name)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 3)
	require.True(t, strings.HasPrefix(lines[0], "3\t"))
	require.Equal(t, "# 37 bytes from position 222 of segment 4 on are no whole record: Truncated", lines[2])
}
