package logtool

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
)

// What stands behind damage is printed when that is asked for, each gap with its bytes and
// the offsets that are missing, wherever the damage is: a record's header, its body, a
// segment's header, the end. Nothing is changed, and the exit says that there was damage.
func TestDumpGoesOnBehindDamage(t *testing.T) {
	dir := t.TempDir()
	offset := segment.Offset(40)
	// segment writes records of 10 bytes and returns where each begins.
	write := func(id segment.ID, n int, change func(b []byte, at []int) []byte) {
		b := segment.AppendHeader(nil, segment.Header{Version: segment.MinVersion, BaseOffset: offset})
		var at []int
		for range n {
			at = append(at, len(b))
			b = segment.AppendRecord(b, &segment.RecordSpec{Offset: offset, Timestamp: 1, Payload: fmt.Appendf(nil, "record %03d", offset)})
			offset++
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(id)), change(b, at), 0o600))
	}
	const size = segment.RecordHeaderSize + 10
	write(0, 10, func(b []byte, at []int) []byte {
		b[at[3]+4] ^= 1  // the header of 43
		b[at[6]+30] ^= 1 // the body of 46, and 47 whole
		copy(b[at[7]:], make([]byte, size))
		return b
	})
	write(1, 3, func(b []byte, at []int) []byte { b[0] ^= 1; return b })
	write(2, 3, func(b []byte, at []int) []byte { return b[:len(b)-1] })
	contents := func() map[string]string {
		all := map[string]string{}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			all[e.Name()] = string(raw)
		}
		return all
	}
	before := contents()
	offsets := func(out string) (all []int) {
		for line := range strings.Lines(out) {
			var o int
			if _, err := fmt.Sscanf(line, "%d\t", &o); err == nil {
				all = append(all, o)
			}
		}
		return all
	}

	out, err := tool(t, "dump", "--dir", dir, "--read-only")
	require.ErrorIs(t, err, ErrDamaged)
	require.Equal(t, []int{40, 41, 42}, offsets(out), "without being asked it ends at the damage")

	out, err = tool(t, "dump", "--dir", dir, "--past-damage", "--read-only")
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "4 gaps were passed over")
	require.Equal(t, []int{40, 41, 42, 44, 45, 48, 49, 50, 51, 52, 53, 54}, offsets(out))
	head := segment.HeaderSize
	for _, want := range []string{
		fmt.Sprintf("# gap: bytes %d to %d of segment 0 (38 bytes) hold no whole record: RecordHeaderChecksum", head+3*size, head+4*size),
		"; offsets 43 to 43 are missing\n",
		fmt.Sprintf("# gap: bytes %d to %d of segment 0 (76 bytes) hold no whole record: RecordChecksum", head+6*size, head+8*size),
		"; offsets 46 to 47 are missing\n",
		fmt.Sprintf("# gap: bytes 0 to %d of segment 1 (32 bytes) hold no whole record: ", head),
		fmt.Sprintf("# gap: bytes %d to %d of segment 2 (37 bytes) hold no whole record: Truncated", head+2*size, head+3*size-1),
	} {
		require.Contains(t, out, want)
	}

	out, err = tool(t, "dump", "--dir", dir, "--past-damage", "--json", "--read-only")
	require.ErrorIs(t, err, ErrDamaged)
	var records, gaps int
	var second gapLine
	for line := range strings.Lines(out) {
		var l struct {
			Offset *int     `json:"offset"`
			Gap    *gapLine `json:"gap"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &l), line)
		require.NotEqual(t, l.Offset == nil, l.Gap == nil, "a line is a record or a gap")
		if l.Gap != nil {
			if gaps++; gaps == 2 {
				second = *l.Gap
			}
			continue
		}
		records++
	}
	require.Equal(t, []int{12, 4}, []int{records, gaps})
	expected, found := segment.Offset(46), segment.Offset(48)
	require.Equal(t, gapLine{
		From: int64(head + 6*size), To: int64(head + 8*size), Damage: "RecordChecksum", Detail: second.Detail, Expected: &expected, Found: &found,
	}, second)
	require.NotEmpty(t, second.Detail)

	// A file alone, and bounds.
	out, err = tool(t, "dump", "--dir", filepath.Join(dir, segment.SegmentName(0)), "--past-damage", "--from", "45", "--limit", "2", "--read-only")
	require.ErrorIs(t, err, ErrDamaged)
	require.Equal(t, []int{45, 48}, offsets(out))
	require.Equal(t, before, contents())
}
