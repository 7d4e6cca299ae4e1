package logtool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/vfs"
)

// A log is neither made nor written where a broker keeps others: the data directory, the
// directories of shards, the metadata. The refusal names the form of a shard's directory, and
// nothing is changed. A shard's own directory, there or not, is taken.
func TestWritersRefuseABrokersDirectories(t *testing.T) {
	root := t.TempDir()
	data := filepath.Join(root, "data")
	shard := filepath.Join(data, "streams", "t_ns_orders_0-0123456789abcdef")
	segmentFile(t, shard, 0, 0, 3, 10)
	segmentFile(t, filepath.Join(shard, "groups"), 0, 0, 3, 10)
	segmentFile(t, filepath.Join(data, "meta"), 0, 0, 3, 10)
	require.NoError(t, os.MkdirAll(filepath.Join(data, "streams", "caches"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "node.json"), []byte(`{"format":1}`), 0o600))
	apart := filepath.Join(root, "storage")
	segmentFile(t, filepath.Join(apart, "t_ns_orders_0-0123456789abcdef"), 0, 0, 3, 10)
	require.NoError(t, os.Symlink(data, filepath.Join(root, "link")))

	list := func() (all []string) {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			all = append(all, path)
			return err
		}))
		return all
	}
	before := list()
	for dir, want := range map[string]string{
		data: "is the data directory of a broker", filepath.Join(root, "link"): "is the data directory of a broker",
		filepath.Join(data, "streams"): "is where a broker keeps its shards", filepath.Join(data, "meta"): "metadata",
		filepath.Join(data, "streams", "caches"): "is where a broker keeps", filepath.Join(data, "mine"): "lies in the data directory",
		apart: "1 logs below it",
	} {
		for _, name := range []string{"write", "seal"} {
			_, err := tool(t, name, "--dir", dir)
			require.Error(t, err, "%s %s", name, dir)
			if name == "seal" && (dir == filepath.Join(data, "mine") || dir == filepath.Join(data, "streams", "caches")) {
				continue // there is no log to be sealed
			}
			require.ErrorContains(t, err, want, "%s %s", name, dir)
			var usage *UsageError
			require.ErrorAs(t, err, &usage)
			if filepath.Base(dir) != "meta" {
				require.ErrorContains(t, err, "<tenant>_<namespace>_<stream>_<shard>-<hash>")
			}
		}
	}
	require.Equal(t, before, list())

	for _, dir := range []string{
		filepath.Join(data, "streams", "t_ns_new_0-0123456789abcdef"), filepath.Join(apart, "t_ns_new_0-0123456789abcdef"), filepath.Join(root, "bare"),
	} {
		_, err := tool(t, "write", "--dir", dir, "--records", "2")
		require.NoError(t, err)
	}
	_, err := tool(t, "write", "--dir", shard, "--records", "2")
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(shard, "00000000000000000000.log")))
	require.NoError(t, checkPlace(vfs.OS(), shard), "beside its groups a stream's log may be begun")
}

// A log is not begun among the files of something else, which are left as they are. An empty
// directory is taken, and one that holds only what a log, a file manager or mkfs left.
func TestWritersRefuseForeignDirectories(t *testing.T) {
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "passwd"), []byte("root"), 0o600))
	_, err := tool(t, "write", "--dir", foreign)
	require.ErrorContains(t, err, "holds no log, and is not empty (passwd)")
	var usage *UsageError
	require.ErrorAs(t, err, &usage)
	entries, err := os.ReadDir(foreign)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	taken := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(taken, "lost+found"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(taken, ".DS_Store"), nil, 0o600))
	_, err = tool(t, "write", "--dir", taken, "--records", "2")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(taken, "notes.txt"), nil, 0o600))
	_, err = tool(t, "write", "--dir", taken, "--records", "2")
	require.NoError(t, err, "it holds a log")
}
