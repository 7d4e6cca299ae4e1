package storage

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/segment"
)

type vector struct {
	Name    string `json:"name"`
	Hex     string `json:"hex"`
	Verdict string `json:"verdict"`
	Zeros   int    `json:"zeros_after"`
}

func vectors(t *testing.T) map[string]vector {
	t.Helper()
	data, err := os.ReadFile("segment/testdata/storage.json")
	require.NoError(t, err)
	var all []json.RawMessage
	require.NoError(t, json.Unmarshal(data, &all))
	out := map[string]vector{}
	for _, raw := range all {
		var v struct {
			Name    string `json:"name"`
			Hex     string `json:"hex"`
			Verdict string `json:"verdict"`
			Zeros   int    `json:"zeros_after"`
		}
		require.NoError(t, json.Unmarshal(raw, &v))
		out[v.Name] = vector{Name: v.Name, Hex: v.Hex, Verdict: v.Verdict, Zeros: v.Zeros}
	}
	return out
}

func (v vector) bytes(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(v.Hex)
	require.NoError(t, err)
	return append(b, make([]byte, v.Zeros)...)
}

// TestVectorDirectories opens a directory with each whole and damaged segment of the
// format's vectors and expects the verdict that stands with it.
func TestVectorDirectories(t *testing.T) {
	vs := vectors(t)
	whole := []string{"payload-00", "payload-01", "payload-02", "payload-03", "payload-04", "payload-05"}
	seen := 0
	for name, v := range vs {
		if !strings.HasPrefix(name, "segment_file_") {
			continue
		}
		seen++
		t.Run(name, func(t *testing.T) {
			d := disk.NewStrict(1, disk.Options{})
			d.Put(logPath(0), v.bytes(t))
			before := d.Files()
			var report RecoveryReport
			o := manual(d, OnCommit)
			o.Events.OnRecovery = func(_ string, r RecoveryReport) { report = r }
			l, err := Open(ctx, testDir, o)
			var want []string
			switch {
			case name == "segment_file_v2_six_records":
				want = whole
				require.NoError(t, err)
				require.Zero(t, report.TruncatedBytes)
			case strings.Contains(v.Verdict, "five records kept"):
				want = whole[:5]
				require.NoError(t, err)
				require.Positive(t, report.TruncatedBytes)
				lost := 0
				for f := range d.Files() {
					if strings.Contains(f, "/lost/0") {
						lost++
					}
				}
				require.Equal(t, 1, lost, "what is cut is kept under lost/")
			case strings.Contains(v.Verdict, "zero-filled tail"):
				want = whole
				require.NoError(t, err)
				require.EqualValues(t, v.Zeros, report.TruncatedBytes)
			default:
				var damaged *DamagedError
				require.ErrorAs(t, err, &damaged)
				var c *segment.Corruption
				require.ErrorAs(t, err, &c)
				require.Equal(t, v.Verdict, c.Kind.String())
				require.Equal(t, "s", c.Shard)
				require.Positive(t, c.Position)
				requireSameFiles(t, before, d.Files())
				return
			}
			require.Equal(t, want, readAll(t, l))
			appendN(t, l, 100, 1)
			require.Equal(t, slices.Concat(want, []string{string(payload(100))}), readAll(t, l))
			require.NoError(t, l.Close(ctx))
		})
	}
	require.Equal(t, 9, seen)
}

// TestVectorIndex expects the index that recovery writes to be the vector's, byte for
// byte, and the one that appending writes to be the same.
func TestVectorIndex(t *testing.T) {
	vs := vectors(t)
	want := string(vs["index_file_of_it_spacing_64"].bytes(t))
	d := disk.NewStrict(1, disk.Options{})
	d.Put(logPath(0), vs["segment_file_v2_six_records"].bytes(t))
	o := manual(d, None)
	o.IndexSpacing = 64
	l := mustOpen(t, testDir, o)
	got, ok := fileOn(d, indexPath(0))
	require.True(t, ok)
	require.Equal(t, want, got, "rebuilt")
	require.NoError(t, l.Close(ctx))

	d = disk.NewStrict(1, disk.Options{})
	o.FS = d
	l = mustOpen(t, testDir, o)
	for i := range 6 {
		require.NoError(t, l.Append(ctx, &Batch{Payloads: [][]byte{[]byte("payload-0" + string(rune('0'+i)))}}))
	}
	require.NoError(t, l.Close(ctx))
	got, ok = fileOn(d, indexPath(0))
	require.True(t, ok)
	require.Equal(t, want, got, "written by appending")
}

// TestVectorHeaders opens a segment of each version with no records, and refuses others.
func TestVectorHeaders(t *testing.T) {
	for name, v := range vectors(t) {
		if !strings.HasPrefix(name, "segment_header_v") {
			continue
		}
		d := disk.NewStrict(1, disk.Options{})
		d.Put(logPath(7), v.bytes(t))
		l := mustOpen(t, testDir, manual(d, None))
		require.Equal(t, Offset(1), l.Next(), name)
		require.NoError(t, l.Close(ctx))
	}
	for _, version := range []byte{0, 1, 7, 255} {
		b := vectors(t)["segment_header_v2"].bytes(t)
		b[5] = version
		d := disk.NewStrict(1, disk.Options{})
		d.Put(logPath(0), b)
		before := d.Files()
		_, err := Open(ctx, testDir, manual(d, None))
		require.ErrorContains(t, err, "version")
		require.True(t, errors.As(err, new(*DamagedError)))
		requireSameFiles(t, before, d.Files())
	}
}

// TestVectorSideFiles opens with the mark, replica and epochs of the vectors beside a log.
func TestVectorSideFiles(t *testing.T) {
	vs := vectors(t)
	d := disk.NewStrict(1, disk.Options{})
	d.Put(logPath(3), segmentBytes(5, 3))
	d.Put(testDir+"/"+segment.MarkName, vs["durable_mark"].bytes(t)) // segment 3, byte 4096: more than there is
	d.Put(testDir+"/"+segment.ReplicaName, vs["replica"].bytes(t))
	d.Put(testDir+"/"+segment.EpochsName, vs["epochs"].bytes(t))
	d.Put(testDir+"/"+segment.ProducersName, vs["producers"].bytes(t))
	l := mustOpen(t, testDir, manual(d, None))
	require.True(t, l.Recovery().MayHaveLost, "the mark names bytes that are not there")
	require.Equal(t, wantPayloads(5, 8), readAll(t, l))
	state, err := l.ReadSide(segment.ReplicaName)
	require.NoError(t, err)
	require.Equal(t, string(vs["replica"].bytes(t)), string(state))
	require.NoError(t, l.Close(ctx))
}
