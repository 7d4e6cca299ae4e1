package node

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/testkit/disk"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

// What cannot be made because the disk is full says so, where, and what to do; nothing of
// it is there, and with room it is made.
func TestNothingIsMadeOnAFullDisk(t *testing.T) {
	faulty := disk.NewFaulty(vfs.OS())
	r := start(t, func(o *Options) { o.FS = faulty })
	create := func(path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.node.HTTPURL()+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+r.token("tenant.manage:cluster:*"))
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(raw)
	}
	for _, c := range []struct {
		path, body string
		shards     bool
	}{
		{"/v1/tenants/default/namespaces/default/streams", `{"stream":"orders","durable":true}`, true},
		{"/v1/tenants/default/namespaces/default/caches", `{"cache":"prices"}`, true},
		{"/v1/tenants/default/namespaces", `{"namespace":"payments"}`, false},
		{"/v1/tenants", `{"tenant_id":"acme","display_name":"acme"}`, false},
	} {
		// The metadata log cannot be written, or the directories of shards cannot be made.
		for what, rule := range map[string]disk.Rule{"write": {Op: disk.OpWrite, Path: "*.log"}, "mkdir": {Op: disk.OpMkdir}} {
			if what == "mkdir" && !c.shards {
				continue
			}
			rule.Count, rule.Action = disk.Forever, disk.NoSpace(3)
			faulty.Add(rule)
			status, raw := create(c.path, c.body)
			require.Equal(t, 507, status, raw)
			require.Contains(t, raw, `"code":"disk_full"`)
			require.Contains(t, raw, "not done: the broker's disk is full ("+what+" ")
			require.Contains(t, raw, r.options.Config.Data)
			require.Contains(t, raw, "make room")
			faulty.Clear()
		}
		status, raw := create(c.path, c.body)
		require.Equal(t, 201, status, raw)
	}
}

// What a disk without any room, or a process without descriptors, cannot do is refused by
// name, with where, what was not done and what to do: also what opens a log first, as the
// first request to a group and to a counter. Nothing has changed, nothing is out of service,
// and with room the same requests are served, without a restart.
func TestReadingsOnADiskWithoutRoom(t *testing.T) {
	for _, lack := range []struct {
		reason string
		rules  []disk.Rule
		does   string
	}{
		{wire.ReasonDiskFull, []disk.Rule{{Op: disk.OpWrite, Action: disk.NoSpace(3)}, {Op: disk.OpMkdir, Action: disk.NoSpace(0)}}, "make room"},
		{wire.ReasonTooManyFiles, []disk.Rule{{Op: disk.OpOpen, Action: disk.Fail(syscall.EMFILE)}}, "raise its limit of open files"},
	} {
		t.Run(lack.reason, func(t *testing.T) {
			faulty := disk.NewFaulty(vfs.OS())
			r := start(t, func(o *Options) { o.FS = faulty })
			r.createStream(`{"stream":"orders","durable":true,"shards":2}`)
			r.createCache(`{"cache":"prices"}`)
			c := r.dial(client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond}))
			for i := range 6 {
				_, err := c.Publish(t.Context(), "orders", []byte("record"), client.ToShard(i%2), client.Deliver(client.AtMostOnce))
				require.NoError(t, err)
			}
			used, fresh := c.Group("orders", "used"), c.Group("orders", "fresh")
			claimed, err := used.Poll(t.Context(), 0, 2)
			require.NoError(t, err)
			require.Len(t, claimed, 2)
			require.NoError(t, used.Ack(t.Context(), claimed[0]))
			before, err := used.Describe(t.Context(), 0)
			require.NoError(t, err)

			for _, rule := range lack.rules {
				rule.Count = disk.Forever
				faulty.Add(rule)
			}
			refused := func(what string, do func() error) {
				t.Helper()
				var err error
				// A decision that was refused before has the groups read again; that is short.
				require.Eventually(t, func() bool { err = do(); return !errors.Is(err, client.ErrShardUnavailable) }, patience, time.Millisecond)
				require.ErrorIs(t, err, client.ErrOverloaded, what)
				for _, part := range []string{lack.reason, "nothing", lack.does} {
					require.ErrorContains(t, err, part, what)
				}
				require.NotContains(t, err.Error(), r.options.Config.Data, what)
			}
			ctx := t.Context()
			poll := func(g *client.Group, shard int) func() error {
				return func() error { _, err := g.Poll(ctx, shard, 1); return err }
			}
			refused("first poll of a shard", poll(fresh, 1))
			refused("first counter", func() error { _, err := c.Cache("prices").Counters().Add(ctx, "n", 1); return err })
			if lack.reason == wire.ReasonDiskFull { // else what is open serves on
				refused("ack", func() error { return used.Ack(ctx, claimed[1]) })
				refused("dead letter", func() error { return used.GiveUp(ctx, claimed[1]) })
				refused("seek", func() error { _, _, err := used.Seek(ctx, 0, false, client.FromEarliest()); return err })
				refused("put", func() error { return c.Cache("prices").Put(ctx, "k", []byte("v")) })
				refused("publish", func() error {
					_, err := c.Publish(ctx, "orders", []byte("more"), client.ToShard(0), client.Deliver(client.AtMostOnce))
					return err
				})
			}
			require.Positive(t, r.metric("felix_refused_total", `reason="`+lack.reason+`"`))
			require.Equal(t, "ready", r.node.Ready().Status)

			faulty.Clear()
			var after client.GroupInfo
			require.Eventually(t, func() bool { after, err = used.Describe(ctx, 0); return err == nil }, patience, time.Millisecond)
			require.Equal(t, before.Position, after.Position)
			require.Equal(t, before.Acked, after.Acked)
			require.Equal(t, before.Tail, after.Tail)
			got, err := used.Poll(ctx, 0, 3)
			require.NoError(t, err)
			require.NotEmpty(t, got)
			got, err = fresh.Poll(ctx, 1, 10)
			require.NoError(t, err)
			require.Len(t, got, 3)
			sum, err := c.Cache("prices").Counters().Add(ctx, "n", 1)
			require.NoError(t, err)
			require.EqualValues(t, 1, sum)
		})
	}
}

// A broker whose disk is full starts, serves what is there, says that node.json is to be
// written yet, and writes it once there is room. One that has no identity yet does not start.
func TestABrokerStartsOnAFullDisk(t *testing.T) {
	first := start(t, nil)
	first.createCache(`{"cache":"prices"}`)
	require.NoError(t, first.dial().Cache("prices").Put(t.Context(), "k", []byte("v")))
	first.stop()

	faulty := disk.NewFaulty(vfs.OS())
	full := disk.Rule{Op: disk.OpWrite, Count: disk.Forever, Action: disk.NoSpace(0)}
	faulty.Add(full)
	looks := make(chan time.Time)
	r := start(t, func(o *Options) {
		*o = first.options
		o.FS, o.looks = faulty, looks
		o.Boot = "another"
	})
	unsaved := func() bool {
		for _, reason := range r.node.Ready().Reasons {
			if reason.Code == "disk" && strings.Contains(reason.Detail, nodeName) {
				return true
			}
		}
		return false
	}
	require.True(t, unsaved())
	require.Contains(t, r.log.String(), "node.json cannot be written, the disk is full")
	require.Eventually(t, func() bool { return r.node.Ready().Ready }, patience, time.Millisecond)
	got, found, err := r.dial().Cache("prices").Get(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "v", string(got.Data))
	require.Eventually(t, func() bool {
		return strings.Contains(r.log.String(), "until it is, a further start would judge damage")
	}, patience, time.Millisecond)

	looks <- time.Now()
	looks <- time.Now() // the one before is done
	require.True(t, unsaved(), "there is no room yet")
	faulty.Clear()
	looks <- time.Now()
	looks <- time.Now()
	require.False(t, unsaved())
	raw, err := os.ReadFile(r.node.data.Path(nodeName))
	require.NoError(t, err)
	require.Contains(t, string(raw), `"boot_id": "another"`)
	require.Contains(t, string(raw), `"clean": false`)

	faulty.Add(full)
	_, err = OpenDataDir(faulty, filepath.Join(t.TempDir(), "new"), "boot")
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "make room")
	faulty.Clear()
}

// A shard that needs room to open is out of service for the disk, not for damage, and serves
// again by itself.
func TestAShardThatNeedsRoomToOpenIsNotCalledDamaged(t *testing.T) {
	first := start(t, nil)
	first.createStream(`{"stream":"orders","durable":true}`)
	c := first.dial()
	for range 3 {
		_, err := c.Publish(t.Context(), "orders", make([]byte, 16<<10)) // enough to have an entry of the index
		require.NoError(t, err)
	}
	first.stop()
	index := filepath.Join(first.options.Config.Data, "streams", "*orders*", "*.index")
	indexes, err := filepath.Glob(index)
	require.NoError(t, err)
	for _, path := range indexes {
		require.NoError(t, os.Remove(path)) // a kill leaves the newest segment without one
	}

	faulty := disk.NewFaulty(vfs.OS())
	full := faulty.Add(disk.Rule{Op: disk.OpWrite, Path: index + "*", Count: disk.Forever, Action: disk.NoSpace(0)})
	r := start(t, func(o *Options) { *o = first.options; o.FS = faulty })
	var reasons []api.Reason
	require.Eventually(t, func() bool { reasons = r.node.Ready().Reasons; return len(reasons) == 1 && r.node.Ready().Ready }, patience, time.Millisecond)
	require.Equal(t, wire.ReasonDiskFull, reasons[0].Code)
	require.Contains(t, reasons[0].Detail, "orders/0")
	c = r.dial(client.WithRetry(client.RetryPolicy{Attempts: 1, Base: time.Millisecond, Max: time.Millisecond}))
	read := func() (n int, err error) {
		page, err := c.Read(t.Context(), "orders", 0, 0)
		if err == nil {
			n = len(page.Records)
		}
		return n, err
	}
	require.Eventually(t, func() bool { // in between it is being recovered
		_, err = read()
		return err != nil && strings.Contains(err.Error(), "make room")
	}, patience, time.Millisecond)
	require.ErrorIs(t, err, client.ErrShardUnavailable)
	require.NotContains(t, err.Error(), first.options.Config.Data, "where the broker keeps its files is not for clients")

	full.Remove()
	require.Eventually(t, func() bool {
		n, err := read()
		return err == nil && n == 3
	}, patience, time.Millisecond)
	require.Empty(t, r.node.Ready().Reasons)
}
