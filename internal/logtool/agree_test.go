package logtool

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// What verify calls damage is what opening the log refuses, or opens having lost what was
// acknowledged; and after opening, verify finds nothing to repair. Two judges, written
// apart, over random damage.
func TestVerifyAgreesWithOpen(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	verdicts := map[string]int{}
	for i := range 250 {
		dir := filepath.Join(t.TempDir(), "s")
		segmentFile(t, dir, 0, 0, 6, 100)
		segmentFile(t, dir, 1, 6, 5, 300)
		newest := segmentFile(t, dir, 3, 11, 4, 200) // no segment 2: see hurt
		if rng.IntN(3) == 0 {
			putMark(t, dir, segment.Mark{Segment: 3, SyncedBytes: newest[rng.IntN(len(newest))]})
		}
		what := hurt(t, rng, dir)
		r, err := verifyJSON(t, dir)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
		}

		log, err := storage.Open(t.Context(), dir, storage.Options{Fsync: storage.OnCommit, VerifyAllOnOpen: true})
		if err != nil {
			var damaged *storage.DamagedError
			require.ErrorAs(t, err, &damaged, "%d %s", i, what)
			require.True(t, r.Damaged, "%d %s: open refuses (%v), verify finds %v", i, what, err, r.Findings)
			verdicts["refused"]++
			continue
		}
		lost := log.Recovery().MayHaveLost
		require.Equal(t, lost, r.Damaged, "%d %s: opened, lost %v (%s), verify finds %v", i, what, lost, log.Recovery().Lost, r.Findings)
		require.Equal(t, log.Next(), r.Next, "%d %s", i, what)
		require.NoError(t, log.Close(t.Context()))
		after, err := verifyJSON(t, dir)
		require.NoError(t, err, "%d %s: %v", i, what, after.Findings)
		for _, f := range after.Findings {
			if f.File == segment.ProducersName {
				continue // theirs who keep producers, who make it anew
			}
			require.Equal(t, "Stray", f.Kind, "%d %s: %v", i, what, after.Findings)
		}
		verdicts[map[bool]string{true: "lost", false: "fine"}[lost]]++
	}
	for _, v := range []string{"refused", "lost", "fine"} {
		require.Greater(t, verdicts[v], 10, "the damage drawn is one-sided: %v", verdicts)
	}
}

// hurt damages one thing in a directory and says what.
func hurt(t *testing.T, rng *rand.Rand, dir string) string {
	id := segment.ID(3)
	if rng.IntN(3) == 0 {
		id = segment.ID(rng.IntN(2))
	}
	path := filepath.Join(dir, segment.SegmentName(id))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	write := func(b []byte) { require.NoError(t, os.WriteFile(path, b, 0o600)) }
	switch rng.IntN(10) {
	case 0:
		at := rng.IntN(len(b))
		if at >= 28 && at < 32 {
			at = 8 // the reserved field is not looked at
		}
		b[at] ^= byte(1 + rng.IntN(255))
		write(b)
		return "flip"
	case 1, 2:
		write(b[:rng.IntN(len(b)+1)])
		return "cut"
	case 3:
		write(append(b, make([]byte, 1+rng.IntN(3000))...))
		return "zeros"
	case 4:
		from := rng.IntN(len(b))
		if rng.IntN(2) == 0 {
			from = from / 512 * 512
		}
		clear(b[from:])
		write(b)
		return "zeroed tail"
	case 5:
		require.NoError(t, os.Remove(path))
		return "segment removed"
	case 6:
		index := filepath.Join(dir, segment.IndexName(id))
		x, err := os.ReadFile(index)
		require.NoError(t, err)
		switch rng.IntN(3) {
		case 0:
			err = os.Remove(index)
		case 1:
			err = os.WriteFile(index, x[:rng.IntN(len(x))], 0o600)
		case 2:
			x[rng.IntN(len(x))] ^= 1
			err = os.WriteFile(index, x, 0o600)
		}
		require.NoError(t, err)
		return "index"
	case 7:
		name := filepath.Join(dir, segment.SegmentName(4))
		body := make([]byte, rng.IntN(100))
		if rng.IntN(4) == 0 && len(body) > 0 {
			body[rng.IntN(len(body))] = 7
		}
		require.NoError(t, os.WriteFile(name, body, 0o600))
		return "unfinished roll"
	case 8:
		require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(2)), randomJunk(rng), 0o600))
		return "short file between"
	default:
		name := []string{segment.ReplicaName, segment.EpochsName, segment.ProducersName, segment.MarkName, "stray~"}[rng.IntN(5)]
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), randomJunk(rng), 0o600))
		return "side file " + name
	}
}

func randomJunk(rng *rand.Rand) []byte {
	b := make([]byte, rng.IntN(40))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// What opening cuts can be read with dump.
func TestDumpReadsWhatOpenCut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	pos := segmentFile(t, dir, 0, 0, 6, 100)
	edit(t, filepath.Join(dir, segment.SegmentName(0)), func(b []byte) []byte { return b[:pos[6]-1] })
	log, err := storage.Open(t.Context(), dir, storage.Options{})
	require.NoError(t, err)
	require.NoError(t, log.Close(t.Context()))
	cut, err := os.ReadDir(filepath.Join(dir, segment.LostDir))
	require.NoError(t, err)
	require.Len(t, cut, 1)
	out, err := tool(t, "dump", "--dir", filepath.Join(dir, segment.LostDir, cut[0].Name()))
	require.NoError(t, err)
	require.Contains(t, out, "no whole record: Truncated")
	require.False(t, errors.Is(err, ErrDamaged))
}
