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

// Segments that do not meet are damage, as what is inside one is: dump ends there, and with
// --past-damage says which offsets are missing. A trimmed head is none, nor a roll that was
// not finished.
func TestDumpSeesWhatIsMissingBetweenSegments(t *testing.T) {
	const size = segment.RecordHeaderSize + 10
	path := func(dir string, id segment.ID) string { return filepath.Join(dir, segment.SegmentName(id)) }
	// Six segments of five records each, 100 to 129.
	fill := func(t *testing.T) string {
		dir := t.TempDir()
		for id := range segment.ID(6) {
			base := 100 + 5*segment.Offset(id)
			b := segment.AppendHeader(nil, segment.Header{Version: segment.MinVersion, BaseOffset: base})
			for i := range segment.Offset(5) {
				b = segment.AppendRecord(b, &segment.RecordSpec{Offset: base + i, Timestamp: 1, Payload: fmt.Appendf(nil, "record %03d", base+i)})
			}
			require.NoError(t, os.WriteFile(path(dir, id), b, 0o600))
		}
		return dir
	}
	offsets := func(out string) string {
		var all []string
		for line := range strings.Lines(out) {
			var o int
			if _, err := fmt.Sscanf(line, "%d\t", &o); err == nil {
				all = append(all, fmt.Sprint(o))
			}
		}
		return strings.Join(all, " ")
	}
	run := func(from, to int) string {
		var all []string
		for o := from; o <= to; o++ {
			all = append(all, fmt.Sprint(o))
		}
		return strings.Join(all, " ")
	}
	whole := int64(segment.HeaderSize + 5*size)
	for _, c := range []struct {
		name    string
		change  func(dir string) error
		args    string
		first   string // what is printed before the first damage
		past    string
		damage  string   // in the error; empty: none
		gaps    []string // in the output behind it
		verdict string   // of JSON: expected and found offset of each gap
	}{
		{
			name: "a missing one", change: func(dir string) error { return os.Remove(path(dir, 2)) },
			first: run(100, 109), past: run(100, 109) + " " + run(115, 129),
			damage:  "OffsetOutOfOrder: the segment begins at offset 115, the one before ends at 110",
			gaps:    []string{"# gap: before segment 3: OffsetOutOfOrder, the segment begins at offset 115, the one before ends at 110; offsets 110 to 114 are missing\n"},
			verdict: "110-115",
		},
		{
			name: "an empty one", change: func(dir string) error { return os.Truncate(path(dir, 2), 0) },
			first: run(100, 109), past: run(100, 109) + " " + run(115, 129),
			damage: "OffsetOutOfOrder", gaps: []string{"# gap: before segment 3: ", "; offsets 110 to 114 are missing\n"}, verdict: "110-115",
		},
		{
			name: "zeros", change: func(dir string) error { return os.WriteFile(path(dir, 2), make([]byte, whole), 0o600) },
			first: run(100, 109), past: run(100, 109) + " " + run(115, 129),
			damage: "HeaderTruncated", verdict: "110-115",
			gaps: []string{fmt.Sprintf("# gap: bytes 0 to %d of segment 2 (%d bytes) hold no whole record: HeaderTruncated", whole, whole), "; offsets 110 to 114 are missing\n"},
		},
		{
			name: "another in its place", change: func(dir string) error {
				b, err := os.ReadFile(path(dir, 4))
				if err != nil {
					return err
				}
				return os.WriteFile(path(dir, 2), b, 0o600)
			},
			first: run(100, 109), past: run(100, 109) + " " + run(120, 124) + " " + run(115, 129),
			damage:  "OffsetOutOfOrder",
			gaps:    []string{"; offsets 110 to 119 are missing\n", "# gap: before segment 3: OffsetOutOfOrder, the segment begins at offset 115, the one before ends at 125\n"},
			verdict: "110-120 125-115",
		},
		{
			name: "one cut at a record", change: func(dir string) error { return os.Truncate(path(dir, 2), whole-2*size) },
			first: run(100, 112), past: run(100, 112) + " " + run(115, 129),
			damage: "OffsetOutOfOrder", gaps: []string{"# gap: before segment 3: ", "; offsets 113 to 114 are missing\n"}, verdict: "113-115",
		},
		{
			name: "one cut in a record", change: func(dir string) error { return os.Truncate(path(dir, 2), whole-2*size+9) },
			first: run(100, 112), past: run(100, 112) + " " + run(115, 129),
			damage: "Truncated", gaps: []string{"of segment 2 (9 bytes) hold no whole record: Truncated", "; offsets 113 to 114 are missing\n"}, verdict: "113-115",
		},
		{
			name: "the first one empty", change: func(dir string) error { return os.Truncate(path(dir, 0), 3) },
			past: run(105, 129), damage: "HeaderTruncated", gaps: []string{"# gap: bytes 0 to 3 of segment 0 (3 bytes)"}, verdict: "?-105",
		},
		{name: "the head trimmed", change: func(dir string) error { return os.Remove(path(dir, 0)) }, first: run(105, 129), past: run(105, 129)},
		{name: "the newest empty", change: func(dir string) error { return os.Truncate(path(dir, 5), 0) }, first: run(100, 124), past: run(100, 124)},
		{
			name: "an unfinished one between two that meet", change: func(dir string) error {
				if err := os.Rename(path(dir, 5), path(dir, 6)); err != nil {
					return err
				}
				return os.WriteFile(path(dir, 5), nil, 0o600)
			},
			first: run(100, 129), past: run(100, 129),
		},
		{
			name: "a missing one behind what was asked for", change: func(dir string) error { return os.Remove(path(dir, 2)) },
			args: "--to 110", first: run(100, 109), past: run(100, 109),
		},
		{
			name: "a missing one behind the limit", change: func(dir string) error { return os.Remove(path(dir, 2)) },
			args: "--limit 10", first: run(100, 109), past: run(100, 109),
		},
		{
			name: "a missing one before what was asked for", change: func(dir string) error { return os.Remove(path(dir, 2)) },
			args: "--from 115", first: run(115, 129), past: run(115, 129),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := fill(t)
			require.NoError(t, c.change(dir))
			args := append([]string{"dump", "--dir", dir, "--read-only"}, strings.Fields(c.args)...)

			out, err := tool(t, args...)
			require.Equal(t, c.first, offsets(out))
			if c.damage == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, c.damage)
			}

			out, err = tool(t, append(args, "--past-damage")...)
			require.Equal(t, c.past, offsets(out))
			for _, gap := range c.gaps {
				require.Contains(t, out, gap)
			}
			require.Equal(t, len(strings.Fields(c.verdict)), strings.Count(out, "# gap: "))
			if c.damage == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrDamaged)
			}

			out, _ = tool(t, append(args, "--past-damage", "--json")...)
			var gaps []string
			for line := range strings.Lines(out) {
				var l struct {
					Gap *gapLine `json:"gap"`
				}
				require.NoError(t, json.Unmarshal([]byte(line), &l), line)
				if l.Gap != nil {
					text := func(o *segment.Offset) string {
						if o == nil {
							return "?"
						}
						return o.String()
					}
					gaps = append(gaps, text(l.Gap.Expected)+"-"+text(l.Gap.Found))
				}
			}
			require.Equal(t, c.verdict, strings.Join(gaps, " "))
		})
	}
}
