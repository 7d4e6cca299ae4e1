package node

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/logtool"
	"github.com/felixlog/felix/storage/vfs"
)

// Two brokers never have one storage directory, whatever their data directories and
// whichever path names it; nor has an offline tool one of its shards beside a broker.
func TestStorageDirectoryInUse(t *testing.T) {
	shared := filepath.Join(t.TempDir(), "disk", "shards")
	r := start(t, func(o *Options) { o.Config.Storage.Dir = shared })
	r.awaitReady()
	status, raw := r.call(http.MethodPost, "/v1/tenants/default/namespaces/default/streams",
		`{"stream":"orders","kind":"Stream","shards":1,"durable":true,"replication_factor":1,"consistency":"Leader","delivery":"AtLeastOnce"}`)
	require.Less(t, status, 300, "%s", raw)
	require.NoError(t, r.node.broker.WaitReady(t.Context()))
	logs, err := filepath.Glob(filepath.Join(shared, "*", "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	shard := filepath.Dir(logs[0])

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(shared, link))
	attempt := func(o Options) error {
		o.Log = slog.New(slog.DiscardHandler)
		n, err := Start(t.Context(), o)
		if err == nil {
			require.NoError(t, n.Stop(t.Context()))
		}
		return err
	}
	linked := testOptions(t)
	require.NoError(t, os.MkdirAll(linked.Config.Data, 0o700))
	require.NoError(t, os.Symlink(shared, filepath.Join(linked.Config.Data, logsDir)))
	named, behind := testOptions(t), testOptions(t)
	named.Config.Storage.Dir, behind.Config.Storage.Dir = shared, link
	for name, o := range map[string]Options{"the same path": named, "a link to it": behind, "streams/ is a link to it": linked} {
		err := attempt(o)
		require.ErrorIs(t, err, ErrInUse, name)
		require.ErrorContains(t, err, strconv.Itoa(os.Getpid()), "%s: the holder is named", name)
		require.ErrorContains(t, err, "--storage-dir", name)
	}
	require.NoDirExists(t, filepath.Join(shared, "aside"), "the refused ones left it alone")

	for _, dir := range []string{shard, filepath.Join(link, filepath.Base(shard))} {
		_, err := logtool.OpenSource(t.Context(), dir, nil)
		require.ErrorIs(t, err, vfs.ErrLocked, dir)
	}
	require.NoFileExists(t, filepath.Join(shard, lockName))
	require.NotContains(t, r.log.String(), `"file":"LOCK"`, "the lock is no stray")
	r.stop()
	require.NoError(t, attempt(r.options), "free again")
}

// A storage directory that is refused is left as it was, a LOCK in it included: it may be
// another program's. In one that is taken the file says who has it, if it is ours.
func TestARefusedStorageDirectoryIsLeftAlone(t *testing.T) {
	o := testOptions(t)
	o.Log = slog.New(slog.DiscardHandler)
	o.Config.Storage.Dir = t.TempDir()
	inside, lock := filepath.Join(o.Config.Storage.Dir, "theirs"), filepath.Join(o.Config.Storage.Dir, lockName)
	require.NoError(t, os.Mkdir(inside, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(inside, "file"), nil, 0o600))
	says := func() string {
		raw, err := os.ReadFile(lock)
		require.NoError(t, err)
		return string(raw)
	}
	for _, text := range []string{"", "2147483647\n", "somebody's\n"} {
		require.NoError(t, os.WriteFile(lock, []byte(text), 0o600))
		_, err := Start(t.Context(), o)
		require.ErrorIs(t, err, ErrNoMeta)
		require.Equal(t, text, says())
	}
	require.NoError(t, os.Remove(lock))
	_, err := Start(t.Context(), o)
	require.ErrorIs(t, err, ErrNoMeta)
	require.NoFileExists(t, lock)

	require.NoError(t, os.RemoveAll(inside))
	pid := strconv.Itoa(os.Getpid()) + "\n"
	for text, want := range map[string]string{"": pid, "2147483647\n": pid, "somebody's\n": "somebody's\n"} {
		require.NoError(t, os.WriteFile(lock, []byte(text), 0o600))
		n, err := Start(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, want, says())
		require.NoError(t, n.Stop(t.Context()))
	}
}
