package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/archive"
	"github.com/felixlog/felix/storage/vfs"
)

func (s *shell) dial() *client.Client {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The child finds it through its home.
	found, err := filepath.Glob(filepath.Join(s.dir, "home", "*", "felix", "context.yaml"))
	require.NoError(s.t, err)
	require.Len(s.t, found, 1)
	e := &environment{environ: s.env, err: io.Discard, out: io.Discard}
	e.opts.contextFile, e.opts.timeout = found[0], patience
	c, _, err := e.dial(ctx)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, c.Close()) })
	return c
}

// traffic is what clients were told while a broker was backed up.
type traffic struct {
	mu     sync.Mutex
	acked  [2]map[uint64]string // by shard: payloads by offset
	done   map[uint64]bool      // acked by the group on shard 0
	put    int                  // newest value of the cache's key "moving" that was acknowledged
	stop   context.CancelFunc
	failed error
}

func (tr *traffic) note(f func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	f()
}

// counts are how far it got.
func (tr *traffic) counts() (a, b, done, put int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.acked[0]), len(tr.acked[1]), len(tr.done), tr.put
}

// run publishes to both shards, consumes one, and writes a cache, until it is stopped.
func (tr *traffic) run(ctx context.Context, c *client.Client) (wait func() error) {
	ctx, tr.stop = context.WithCancel(ctx)
	var all sync.WaitGroup
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			tr.note(func() { tr.failed = err })
			tr.stop()
		}
	}
	for shard := range tr.acked {
		tr.acked[shard] = map[uint64]string{}
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				payload := fmt.Sprintf("shard %d record %d %s", shard, i, strings.Repeat("x", 700))
				ack, err := c.Publish(context.WithoutCancel(ctx), "orders", []byte(payload), client.ToShard(shard))
				if err != nil {
					fail(err)
					return
				}
				tr.note(func() { tr.acked[shard][ack.Offset] = payload })
			}
		})
	}
	tr.done = map[uint64]bool{}
	all.Go(func() {
		g := c.Group("orders", "billing")
		for ctx.Err() == nil {
			got, err := g.Poll(context.WithoutCancel(ctx), 0, 20, client.WithWait(100*time.Millisecond))
			for _, m := range got {
				if err == nil && m.Offset%3 != 0 { // every third stays claimed
					if err = g.Ack(context.WithoutCancel(ctx), m); err == nil {
						tr.note(func() { tr.done[m.Offset] = true })
					}
				}
			}
			if err != nil {
				fail(err)
				return
			}
		}
	})
	all.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			if err := c.Cache("prices").Put(context.WithoutCancel(ctx), "moving", fmt.Append(nil, i)); err != nil {
				fail(err)
				return
			}
			tr.note(func() { tr.put = i })
		}
	})
	return func() error {
		tr.stop()
		all.Wait()
		return tr.failed
	}
}

// A broker is backed up while it works, and restored: what was acknowledged up to each cut
// is there, at its offset; what the group had settled is settled and the rest is not.
func TestBackupOfABusyBrokerIsRestored(t *testing.T) {
	s := newShell(t)
	s.serve("--storage-segment-bytes", "16KiB")
	s.ok("stream", "create", "orders", "--durable", "--shards", "2", "--retention-age", "7d")
	s.ok("stream", "create", "live")
	s.ok("cache", "create", "prices", "--shards", "2")
	s.ok("counter", "add", "prices", "hits", "41")
	s.ok("cache", "put", "prices", "key1", "value1")
	c := s.dial()
	tr := &traffic{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wait := tr.run(ctx, c)
	enough := func(more int) {
		t.Helper()
		a0, b0, d0, p0 := tr.counts()
		require.Eventually(t, func() bool {
			a, b, d, p := tr.counts()
			return a >= a0+more && b >= b0+more && d > d0 && p > p0 || ctx.Err() != nil
		}, patience, time.Millisecond)
	}
	enough(50)
	_, _, _, putBefore := tr.counts()
	doneBefore, ackedBefore := map[uint64]bool{}, [2]uint64{}
	tr.note(func() {
		for o := range tr.done {
			doneBefore[o] = true
		}
		for shard, acked := range tr.acked {
			for o := range acked {
				ackedBefore[shard] = max(ackedBefore[shard], o)
			}
		}
	})
	line := decode[backupLine](t, s.ok("backup", "felix.tar", "--json"))
	enough(20)
	require.NoError(t, wait())
	version, ok, err := c.Cache("prices").Get(t.Context(), "key1")
	require.NoError(t, err)
	require.True(t, ok)

	cuts := map[uint32]uint64{}
	for _, cut := range line.Cuts {
		if cut.Kind == archive.KindStream {
			cuts[cut.Shard] = uint64(cut.Next)
		}
	}
	require.Equal(t, "restored into", strings.Join(strings.Fields(s.ok("restore", "felix.tar", "--data-dir", "second"))[:2], " "))

	other := newShell(t)
	other.serve("--data", filepath.Join(s.dir, "second"))
	r := other.dial()
	for shard := range tr.acked {
		cut := cuts[uint32(shard)]
		require.Greater(t, cut, ackedBefore[shard], "acknowledged before the backup began, and past its cut")
		var got []string
		for at := uint64(0); at < cut; {
			page, err := r.Read(t.Context(), "orders", shard, at)
			require.NoError(t, err)
			require.NotEmpty(t, page.Records)
			for _, rec := range page.Records {
				got = append(got, string(rec.Payload))
			}
			at = page.Next
		}
		require.Len(t, got, int(cut))
		for o, payload := range tr.acked[shard] {
			if o < cut {
				require.Equal(t, payload, got[o], "shard %d offset %d", shard, o)
			}
		}
		ack, err := r.Publish(t.Context(), "orders", []byte("next"), client.ToShard(shard))
		require.NoError(t, err)
		require.Equal(t, cut, ack.Offset)
	}

	// The claims of before are void or lapse; what was settled before the backup is not
	// handed out, what never was is.
	info, err := r.Group("orders", "billing").Describe(t.Context(), 0)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Position, info.Tail)
	require.GreaterOrEqual(t, info.Acked, uint64(len(doneBefore)))
	require.LessOrEqual(t, info.Acked, uint64(len(tr.done)))
	require.Equal(t, info.Tail-info.Start, info.Ready+info.Delayed+info.Claimed+info.Acked+info.Dead+info.Discarded+info.Lost)
	seen := map[uint64]bool{}
	for {
		got, err := r.Group("orders", "billing").Poll(t.Context(), 0, 1000)
		require.NoError(t, err)
		if len(got) == 0 {
			break
		}
		for _, m := range got {
			seen[m.Offset] = true
			require.False(t, doneBefore[m.Offset], "offset %d was settled before the backup began", m.Offset)
		}
	}
	for o := range cuts[0] {
		require.True(t, seen[o] || tr.done[o], "offset %d was never settled and is not handed out", o)
	}

	again, ok, err := r.Cache("prices").Get(t.Context(), "key1")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, version, again, "value and version")
	moving, _, err := r.Cache("prices").Get(t.Context(), "moving")
	require.NoError(t, err)
	var at int
	_, err = fmt.Sscan(string(moving.Data), &at)
	require.NoError(t, err)
	require.GreaterOrEqual(t, at, putBefore)
	require.Equal(t, "41\n", other.ok("counter", "get", "prices", "hits"))
	require.Equal(t, s.ok("stream", "info", "orders", "--json"), other.ok("stream", "info", "orders", "--json"))
	require.Equal(t, s.ok("stream", "info", "live", "--json"), other.ok("stream", "info", "live", "--json"))

	// Another broker: its own disk id, key and authority.
	for _, name := range []string{"node.json", "keys/default/current", "tls/ca.crt"} {
		first, err := os.ReadFile(filepath.Join(s.dir, "felix-data", name))
		require.NoError(t, err)
		second, err := os.ReadFile(filepath.Join(s.dir, "second", name))
		require.NoError(t, err)
		require.NotEqual(t, first, second, name)
	}
}

// With --secrets the restored broker is believed by whoever believed the first.
func TestBackupWithSecrets(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "hello")
	s.ok("backup", "with.tar", "--secrets")
	s.ok("restore", "with.tar", "--data-dir", "second")
	require.NoError(t, b.Stop())
	// The context of the first broker, its key and its certificates, at the first's place.
	s.serve("--data", "second", "--listen", b.Clients, "--http-listen", strings.TrimPrefix(b.HTTP, "http://"), "--context-file", "other.yaml")
	require.Equal(t, "hello\n", s.ok("sub", "orders", "--from", "earliest", "--count", "1"))
}

func TestBackupRefusals(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "hello")
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "there"), []byte("mine"), 0o600))
	token := strings.TrimSpace(s.ok("token", "mint", "--audience", "felix-controlplane", "--perm", "tenant.manage:tenant:default"))
	noKeys := strings.TrimSpace(s.ok("token", "mint", "--audience", "felix-controlplane", "--perm", "node.manage:cluster:*"))
	for _, c := range []struct {
		name string
		args []string
		exit int
		want string
	}{
		{"a file that is there", []string{"there"}, exitUsage, "there exists"},
		{"no such folder", []string{"no/such/folder.tar"}, exitUsage, "no such file"},
		{"nobody there", []string{"x.tar", "--controlplane-url", "http://127.0.0.1:1"}, exitUnreachable, "no answer"},
		{"without the permission", []string{"x.tar", "--controlplane-token", token}, exitRefused, "node.manage"},
		{"secrets without the permission", []string{"x.tar", "--secrets", "--controlplane-token", noKeys}, exitRefused, "tenant.manage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *s
			own.t = t
			_, errs := own.felix(append([]string{"backup"}, c.args...)...)
			require.Equal(t, c.exit, own.exit, errs)
			require.Contains(t, errs, c.want)
		})
	}
	raw, err := os.ReadFile(filepath.Join(s.dir, "there"))
	require.NoError(t, err)
	require.Equal(t, "mine", string(raw))

	// A shard that does not serve has no place in a backup, and is named.
	require.NoError(t, b.Stop())
	logs, err := filepath.Glob(filepath.Join(s.dir, "felix-data/streams/*orders*/*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	raw, err = os.ReadFile(logs[0])
	require.NoError(t, err)
	raw[9] ^= 1
	require.NoError(t, os.WriteFile(logs[0], raw, 0o600))
	b = s.serve()
	_, errs := s.felix("backup", "x.tar")
	require.NotZero(t, s.exit)
	require.Contains(t, errs, "shard default/default/orders/0 does not serve")
	require.NoError(t, b.Stop())
	s.serve("--storage", "none", "--data", "memory", "--context", "local")
	_, errs = s.felix("backup", "x.tar")
	require.Equal(t, exitRefused, s.exit)
	require.Contains(t, errs, "storage none")
	left, err := filepath.Glob(filepath.Join(s.dir, "x.tar*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// A backup that does not come whole leaves no file, whatever ended it.
func TestABackupThatBreaksOffLeavesNoFile(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.feed(strings.Repeat("line\n", 5000), "pub", "orders", "--ack", "none")
	s.ok("backup", "whole.tar")
	whole, err := os.ReadFile(filepath.Join(s.dir, "whole.tar"))
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"the connection breaks", func(w http.ResponseWriter, r *http.Request) {
			if _, err := w.Write(whole[:len(whole)/2]); err != nil {
				t.Error(err)
			}
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "broke after"},
		{"the broker says why", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", api.BackupError)
			if _, err := w.Write(whole[:len(whole)/2]); err != nil {
				t.Error(err)
			}
			w.Header().Set(api.BackupError, "stream orders was deleted")
		}, "stream orders was deleted"},
		{"the end is missing", func(w http.ResponseWriter, r *http.Request) {
			if _, err := w.Write(whole[:len(whole)-1500]); err != nil {
				t.Error(err)
			}
		}, "incomplete backup"},
		{"a bit is wrong", func(w http.ResponseWriter, r *http.Request) {
			raw := bytes.Clone(whole)
			raw[len(raw)/2] ^= 1
			if _, err := w.Write(raw); err != nil {
				t.Error(err)
			}
		}, "damaged backup"},
		{"nothing more comes", func(w http.ResponseWriter, r *http.Request) {
			if _, err := w.Write(whole[:len(whole)/2]); err != nil {
				t.Error(err)
			}
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "nothing came for 1s, which --timeout allows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := httptest.NewServer(c.serve)
			defer broken.Close()
			own := *s
			own.t = t
			args := []string{"backup", "broken.tar", "--controlplane-url", broken.URL}
			if c.name == "nothing more comes" {
				args = append(args, "--timeout", "1s")
			}
			_, errs := own.felix(args...)
			require.NotZero(t, own.exit)
			require.Contains(t, errs, c.want)
			left, err := filepath.Glob(filepath.Join(s.dir, "broken.tar*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// A backup that is killed leaves a file beside its target, which the next one of that
// target removes and names; one that is being written stays, and so does what is not a
// backup's.
func TestWhatAKilledBackupLeft(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "x")
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := w.Write([]byte("the beginning")); err != nil {
			t.Error(err)
		}
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer stuck.Close()
	defer stuck.CloseClientConnections()
	begin := func() *exec.Cmd {
		cmd := exec.Command(executable(t), "backup", "felix.tar", "--controlplane-url", stuck.URL)
		cmd.Dir, cmd.Env = s.dir, s.env
		require.NoError(t, cmd.Start())
		return cmd
	}
	partials := func() []string {
		all, err := filepath.Glob(filepath.Join(s.dir, "felix.tar*"))
		require.NoError(t, err)
		return all
	}
	// One that holds something is locked already.
	being := func() (name string) {
		require.Eventually(t, func() bool {
			for _, p := range partials() {
				if info, err := os.Stat(p); err == nil && info.Size() > 0 {
					name = p
				}
			}
			return name != ""
		}, patience, time.Millisecond)
		return name
	}
	first := begin()
	left := being()
	require.NoError(t, first.Process.Kill())
	require.Error(t, first.Wait())
	require.NoError(t, os.Truncate(left, 0))

	second := begin()
	written := being()
	require.NoFileExists(t, left)
	other := filepath.Join(s.dir, "felix.tar.partial-notes")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	killed := filepath.Join(s.dir, "felix.tar.partial-17")
	require.NoError(t, os.WriteFile(killed, nil, 0o600))
	_, errs := s.felix("backup", "felix.tar")
	require.Zero(t, s.exit, errs)
	require.Contains(t, errs, "removed felix.tar.partial-17, which a backup that was killed had left")
	require.NotContains(t, errs, filepath.Base(written))
	require.ElementsMatch(t, []string{filepath.Join(s.dir, "felix.tar"), written, other}, partials())
	require.NoError(t, second.Process.Signal(os.Interrupt))
	require.Error(t, second.Wait())
	require.NoFileExists(t, written, "one that is interrupted removes its own")
}

// A backup that ends by itself while another looks for what was left is not taken for one
// that was killed, and the other goes on.
func TestABackupThatEndsIsNotLeft(t *testing.T) {
	for name, ends := range map[string]func(partial, file string) error{
		"named by a link":     func(partial, file string) error { return errors.Join(os.Link(partial, file), os.Remove(partial)) },
		"named by a renaming": os.Rename,
		"given up":            func(partial, _ string) error { return os.Remove(partial) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "felix.tar")
			tmp, unlock, err := newPartial(file)
			require.NoError(t, err)
			defer tmp.Close()
			_, err = tmp.WriteString("backup")
			require.NoError(t, err)
			f, err := os.Open(tmp.Name())
			require.NoError(t, err)
			defer f.Close()
			_, err = removePartial(f)
			require.ErrorIs(t, err, vfs.ErrLocked)
			require.NoError(t, ends(tmp.Name(), file))
			unlock()
			removed, err := removeLocked(f)
			require.NoError(t, err, "locked by who had opened it before")
			require.False(t, removed)
			removed, err = removePartial(f)
			require.NoError(t, err)
			require.False(t, removed)
			require.NoFileExists(t, tmp.Name())
			if name != "given up" {
				have, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, "backup", string(have))
			}
		})
	}
	killed := filepath.Join(t.TempDir(), "felix.tar.partial-17")
	require.NoError(t, os.WriteFile(killed, nil, 0o600))
	f, err := os.Open(killed)
	require.NoError(t, err)
	defer f.Close()
	removed, err := removePartial(f)
	require.NoError(t, err)
	require.True(t, removed)
	require.NoFileExists(t, killed)
}

// What cannot be restored is refused before anything is written.
func TestRestoreRefusals(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "orders", "--durable")
	s.feed(strings.Repeat("line\n", 1000), "pub", "orders", "--ack", "none")
	s.ok("backup", "good.tar")
	good, err := os.ReadFile(filepath.Join(s.dir, "good.tar"))
	require.NoError(t, err)
	write := func(name string, raw []byte) string {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), raw, 0o600))
		return name
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 4
	newer := bytes.Replace(bytes.Clone(good), []byte(`"version":1`), []byte(`"version":7`), 1)
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "full"), 0o700))
	write("full/thesis.tex", []byte("x"))
	for _, c := range []struct {
		name, file, dir string
		exit            int
		want            string
	}{
		{"no such file", "none.tar", "new", exitUsage, "no such file"},
		{"a directory", "full", "new", exitUsage, "is not a file"},
		{"no backup", write("text.tar", []byte("hello")), "new", exitOther, "not a backup"},
		{"cut off", write("cut.tar", good[:len(good)/2]), "new", exitOther, "incomplete backup"},
		{"a flipped bit", write("flipped.tar", flipped), "new", exitOther, "damaged backup"},
		{"another version", write("newer.tar", newer), "new", exitOther, "version 7"},
		{"a full directory", "good.tar", "full", exitOther, "is not empty (thesis.tex)"},
		{"a broker's directory", "good.tar", "felix-data", exitOther, "is not empty"},
		{"a file for a directory", "good.tar", "good.tar", exitOther, "is not a directory"},
		{"no directory", "good.tar", "", exitUsage, "--data-dir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := *s
			own.t = t
			_, errs := own.felix("restore", c.file, "--data-dir", c.dir)
			require.Equal(t, c.exit, own.exit, errs)
			require.Contains(t, errs, c.want)
			_, err := os.Stat(filepath.Join(s.dir, "new"))
			require.ErrorIs(t, err, os.ErrNotExist, "something was written")
		})
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, "full"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, b.Stop())
}

// A restore that is killed leaves a directory that no broker starts on, and the next
// restore begins anew.
func TestARestoreThatIsKilledIsDoneAgain(t *testing.T) {
	s := newShell(t)
	b := s.serve("--storage-segment-bytes", "16KiB")
	s.ok("stream", "create", "orders", "--durable", "--shards", "64")
	s.feed(strings.Repeat(strings.Repeat("x", 1000)+"\n", 2000), "pub", "orders", "--ack", "none")
	s.ok("backup", "felix.tar")
	require.NoError(t, b.Stop())
	self, err := os.Executable()
	require.NoError(t, err)
	data := filepath.Join(s.dir, "second")
	killed := false
	for try := 0; try < 20 && !killed; try++ {
		require.NoError(t, os.RemoveAll(data))
		cmd := exec.Command(self, "restore", "felix.tar", "--data-dir", "second")
		cmd.Dir, cmd.Env = s.dir, s.env
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		require.Eventually(t, func() bool {
			some, err := filepath.Glob(filepath.Join(data, "streams", "*"))
			return err != nil || len(some) > try || len(ended) > 0
		}, patience, 100*time.Microsecond)
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		if <-ended != nil {
			_, err := os.Stat(filepath.Join(data, "RESTORING"))
			killed = err == nil // else it was as good as done
		}
	}
	require.True(t, killed, "every restore was done before it was killed")
	_, errs := s.felix("serve", "--data", "second", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	require.Equal(t, exitOther, s.exit)
	require.Contains(t, errs, "holds a restore that did not end")
	require.Contains(t, errs, "felix restore")

	s.ok("restore", "felix.tar", "--data-dir", "second")
	s.serve("--data", "second", "--context", "local")
	require.Equal(t, 2000, strings.Count(s.ok("sub", "orders", "--from", "earliest", "--count", "2000"), "\n"))
}
