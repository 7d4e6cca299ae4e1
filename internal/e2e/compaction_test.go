package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

// overwritten is a cache each key of which is written over and over. A value says its key
// and which writing it is of.
type overwritten struct {
	p           *process
	keys        int
	fill        []byte          // what a value is made up with
	acked, sent []atomic.Uint32 // by key: the last writing
}

func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func overwrittenKey(i int) string { return fmt.Sprintf("customer-%031d", i) } // 40 bytes

func (o *overwritten) value(i int, writing uint32) []byte {
	return append(fmt.Appendf(nil, "%d %d ", i, writing), o.fill...)
}

// liveBytes is what the log would hold with one record for each key.
func (o *overwritten) liveBytes() int64 {
	return int64(o.keys) * int64(segment.RecordHeaderSize+cache.EntrySize(len(overwrittenKey(0)), len(o.value(o.keys-1, 10))))
}

// write writes the keys [from, to) once more, on a connection of its own. It ends early
// when the broker does.
func (o *overwritten) write(from, to int) {
	conn, err := o.p.connect()
	if err != nil {
		return
	}
	defer conn.Close()
	reader := wire.NewReader(conn, wire.DefaultMaxFrame)
	const window = 256
	for first := from; first < to; first += window {
		last := min(first+window, to)
		var b []byte
		for i := first; i < last; i++ {
			b = wire.AppendMessage(b, &wire.CachePut{
				Tenant: "default", Namespace: "default", Cache: "c", Key: overwrittenKey(i),
				Value: o.value(i, o.sent[i].Add(1)), RequestID: uint64(i), HasRequestID: true,
			})
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
		for i := first; i < last; i++ {
			f, err := reader.Next()
			if err != nil {
				return
			}
			m, err := wire.DecodeMessage(append([]byte(nil), f.Payload...))
			if ok, is := m.(*wire.CacheOK); err != nil || !is || ok.RequestID != uint64(i) {
				o.p.t.Errorf("put %d was answered %#v, %v", i, m, err)
				return
			}
			o.acked[i].Store(o.sent[i].Load())
		}
	}
}

// connect is a connection that is authenticated.
func (p *process) connect() (*tls.Conn, error) {
	trust, err := auth.ClientTLS(p.context(p.t).CAFile, "localhost")
	if err != nil {
		return nil, err
	}
	conn, err := tls.Dial("tcp", p.clients, trust)
	if err != nil {
		return nil, err
	}
	if _, err = conn.Write(wire.AppendMessage(nil, &wire.Auth{Tenant: "default", Token: p.token(p.t, auth.AudienceBroker), HasClientFlags: true, ClientFlags: wire.FlagsKnown})); err == nil {
		if _, err = wire.NewReader(conn, wire.DefaultMaxFrame).Next(); err == nil {
			return conn, nil
		}
	}
	return nil, errors.Join(err, conn.Close())
}

// round writes every key once more, on four connections.
func (o *overwritten) round() *sync.WaitGroup {
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() { o.write(o.keys*n/4, o.keys*(n+1)/4) })
	}
	return &wg
}

// during calls f until it returns false or the writers are done.
func (o *overwritten) during(writers *sync.WaitGroup, f func() bool) {
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for f() {
		select {
		case <-done:
			return
		default:
		}
	}
}

// compactionKill is what a process says before it ends itself.
const compactionKill = "killed while a compaction reads"

// compactionPages is a file system that ends the process when a compaction reads: nothing
// else reads so much of a cache's segment at once, once the recovery is over.
type compactionPages struct {
	vfs.FS
	at    int64
	armed atomic.Bool
	read  atomic.Int64
}

func (c *compactionPages) OpenFile(name string, flag vfs.Flag) (vfs.File, error) {
	f, err := c.FS.OpenFile(name, flag)
	if err == nil && filepath.Ext(name) == ".log" && strings.Contains(name, "/caches/") {
		f = &compactionFile{File: f, pages: c}
	}
	return f, err
}

type compactionFile struct {
	vfs.File
	pages *compactionPages
}

func (f *compactionFile) ReadAt(p []byte, off int64) (int, error) {
	if c := f.pages; len(p) >= 64<<10 && c.armed.Load() && c.read.Add(1) == c.at {
		fmt.Fprintln(os.Stderr, compactionKill)
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {}
	}
	return f.File.ReadAt(p, off)
}

// ended says whether the process has ended by itself.
func (p *process) ended() bool {
	conn, err := net.Dial("tcp", p.clients)
	if err == nil {
		conn.Close()
	}
	return err != nil
}

// reap takes note of a process that has ended by a signal.
func (p *process) reap() {
	p.t.Helper()
	require.Error(p.t, p.cmd.Wait())
	p.cmd = nil
}

// check reads some keys and finds in each the last writing that was answered, or a later
// one that was sent.
func (o *overwritten) check(n int, r *rand.Rand, get func(string) (string, bool)) {
	for k := range n {
		i := k
		if n < o.keys {
			i = r.IntN(o.keys)
		}
		least := o.acked[i].Load()
		got, ok := get(overwrittenKey(i))
		if least == 0 && !ok {
			continue
		}
		var key int
		var writing uint32
		if _, err := fmt.Sscan(got, &key, &writing); err != nil || !ok || key != i || writing < least || writing > o.sent[i].Load() {
			o.p.t.Fatalf("key %d holds %.30q (%v); writing %d was answered, %d sent", i, got, ok, least, o.sent[i].Load())
		}
	}
}

// segments are the sizes of the cache's segments, by name.
func (o *overwritten) segments() (total int64, oldest string) {
	logs, err := filepath.Glob(filepath.Join(o.p.Dir, "data", "streams", "caches", "*", "*.log"))
	require.NoError(o.p.t, err)
	for _, l := range logs {
		info, err := os.Stat(l)
		if err != nil {
			continue // compaction let it go
		}
		if total += info.Size(); oldest == "" {
			oldest = filepath.Base(l)
		}
	}
	return total, oldest
}

// TestCompactionUnderKills writes each key five times, reading all the while, and then goes
// on writing while the broker is killed again and again during compaction: no answered
// write is lost, none comes back, and the disk ends at no more than 2.5 times what lives.
// FELIX_COMPACTION_KEYS and FELIX_COMPACTION_KILLS make it larger.
func TestCompactionUnderKills(t *testing.T) {
	keys, kills := setting("FELIX_COMPACTION_KEYS", 10_000), setting("FELIX_COMPACTION_KILLS", 3)
	p := newProcess(t, "periodic")
	o := &overwritten{p: p, keys: keys, fill: make([]byte, 100), acked: make([]atomic.Uint32, keys), sent: make([]atomic.Uint32, keys)}
	if live := o.liveBytes(); live < 10<<20 {
		o.fill = make([]byte, (10<<20-live)/int64(keys)+100) // below, compaction leaves a log alone
	}
	p.createCache(api.Cache{Cache: "c", Shards: 1})
	// Not patient: the broker ends by itself and is back only when somebody has seen that.
	k := p.dial(client.WithRetry(client.DefaultRetry)).Cache("c")
	get := func(key string) (string, bool) { return cacheGet(t, k, key) }
	r := rand.New(rand.NewPCG(1, 5))
	before := p.residentBytes()

	began := time.Now()
	for range 5 {
		o.during(o.round(), func() bool { o.check(10, r, get); return true })
	}
	for i := range keys {
		require.Equal(t, uint32(5), o.acked[i].Load())
	}
	t.Logf("%d keys written 5 times in %v", keys, time.Since(began).Round(time.Millisecond))
	settled := func(what string) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		for size, _ := o.segments(); float64(size) > 2.5*float64(o.liveBytes()); size, _ = o.segments() {
			// Compaction has a pace of its own. A read tells whether it does any harm.
			o.check(10, r, get)
			require.NoError(t, ctx.Err(), "%s: the disk stays at %d bytes for %d live ones", what, size, o.liveBytes())
		}
		size, _ := o.segments()
		t.Logf("%s: %d MiB on disk, %.2f times the %d MiB that live; the process holds %d MiB, %d bytes a key more than when it was empty",
			what, size>>20, float64(size)/float64(o.liveBytes()), o.liveBytes()>>20, p.residentBytes()>>20, (p.residentBytes()-before)/int64(keys))
	}
	settled("written")
	o.check(keys, r, get)

	// Each kill falls into a compaction: the process ends itself at one of the pages that
	// compaction reads, while the log grows.
	// recovered waits until the cache is served. Reading the log of a million keys in takes
	// longer than a client is patient.
	recovered := func(killing bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, _, err := k.Get(soon(t), overwrittenKey(0))
			return err == nil || killing && p.ended()
		}, 5*time.Minute, 10*time.Millisecond)
	}
	p.stop()
	for killed := range kills {
		p.KillAtPage = 1 + r.Int64N(12)
		p.start()
		recovered(true)
		rounds := 0
		for ; !p.ended(); rounds++ {
			require.Less(t, rounds, 50, "compaction does not run")
			o.round().Wait()
		}
		p.reap()
		require.Contains(t, p.stderr.String(), compactionKill, "kill %d", killed)
		p.KillAtPage = 0
		p.start()
		recovered(false)
		o.check(min(keys, 2000), r, get)
		p.stop()
	}
	p.start()
	recovered(false)
	o.round().Wait()
	settled("killed")
	o.check(keys, r, get)
}
