package archive

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// fixture is a backup of a stream of two shards with groups on one, and a cache with
// counters; the payloads say where they are.
type fixture struct {
	raw  []byte
	defs Definitions
	want map[LogName][]string
}

var cutAt = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// fixtureLogs are its logs, and how many records each has.
var fixtureLogs = []struct {
	LogName
	records int
}{
	{LogName{KindGroups, "t", "n", "orders", 1}, 0},
	{LogName{KindStream, "t", "n", "orders", 0}, 40},
	{LogName{KindStream, "t", "n", "orders", 1}, 1},
	{LogName{KindCache, "t", "n", "prices", 0}, 3},
	{LogName{KindCounters, "t", "n", "prices", 0}, 2},
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{want: map[LogName][]string{}, defs: Definitions{
		Tenants:    []meta.Tenant{{ID: "t", DisplayName: "The Tenant"}},
		Namespaces: []meta.Namespace{{Tenant: "t", Name: "n"}},
		Streams: []meta.Stream{
			meta.Stream{Tenant: "t", Namespace: "n", Name: "orders", Shards: 2, Durable: true, Incarnation: 7}.WithDefaults(),
			meta.Stream{Tenant: "t", Namespace: "n", Name: "flash"}.WithDefaults(), // in memory
		},
		Caches: []meta.Cache{meta.Cache{Tenant: "t", Namespace: "n", Name: "prices", Durable: true, MaxKeys: 5}.WithDefaults()},
	}}
	type cut struct {
		name LogName
		copy *storage.Copy
	}
	var cuts []cut
	total := int64(5) // the secret below
	for _, log := range fixtureLogs {
		name := log.LogName
		o := storage.Options{FS: vfs.OS(), Shard: name.String(), SegmentBytes: 1 << 10, Fsync: storage.None}
		l, err := storage.Open(t.Context(), t.TempDir(), o)
		require.NoError(t, err)
		for j := range log.records {
			payload := fmt.Sprintf("%s record %d", name, j)
			f.want[name] = append(f.want[name], payload)
			require.NoError(t, l.Append(t.Context(), &storage.Batch{Payloads: [][]byte{[]byte(payload)}}))
		}
		c, err := l.Copy(t.Context(), l.Stable())
		require.NoError(t, err)
		for _, s := range c.Segments {
			total += s.Bytes
		}
		cuts = append(cuts, cut{name, c})
		defer func() {
			c.Release()
			require.NoError(t, l.Close(t.Context()))
		}()
	}
	var out bytes.Buffer
	w, err := NewWriter(&out, Origin{CreatedAt: cutAt, Broker: "test", DiskID: "0123"}, f.defs, total)
	require.NoError(t, err)
	for _, c := range cuts {
		require.NoError(t, w.Log(t.Context(), c.name, cutAt, c.copy))
	}
	require.NoError(t, w.Secret("keys/t/current", []byte("kid-1")))
	require.NoError(t, w.Close())
	f.raw = out.Bytes()
	return f
}

func open(t testing.TB, raw []byte) (*Archive, error) {
	t.Helper()
	return Open(t.Context(), bytes.NewReader(raw), int64(len(raw)), Options{})
}

// contents are all the bytes that a restore would use.
func contents(a *Archive) (map[string]string, error) {
	out := map[string]string{}
	for i := range a.Logs {
		for j, s := range a.Logs[i].Segments {
			raw, err := io.ReadAll(a.Segment(i, j))
			if err != nil {
				return nil, err
			}
			out[a.Logs[i].entry(s.ID)] = string(raw)
		}
	}
	for i, s := range a.Secrets {
		raw, err := io.ReadAll(a.Secret(i))
		if err != nil {
			return nil, err
		}
		out[s.Path] = string(raw)
	}
	return out, nil
}

// item is an entry of a tar file.
type item struct {
	tar.Header
	body []byte
}

func unpack(t testing.TB, raw []byte) (all []item) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(raw))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		body, err := io.ReadAll(r)
		require.NoError(t, err)
		all = append(all, item{*h, body})
	}
}

func pack(t testing.TB, all []item) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range all {
		h := e.Header
		h.Size = int64(len(e.body))
		require.NoError(t, w.WriteHeader(&h))
		_, err := w.Write(e.body)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func find(t testing.TB, all []item, name string) int {
	t.Helper()
	i := slices.IndexFunc(all, func(e item) bool { return e.Name == name })
	require.NotEqual(t, -1, i, name)
	return i
}

// seal is a last entry of these bytes, its checksum right.
func seal(t testing.TB, manifest []byte) []byte {
	t.Helper()
	b, err := json.Marshal(envelope{Format, Version, Checksum(crc32.ChecksumIEEE(manifest)), manifest})
	require.NoError(t, err)
	return b
}

// edited is the backup with another manifest, sealed anew.
func (f *fixture) edited(t testing.TB, change func(m *Manifest)) []byte {
	t.Helper()
	all := unpack(t, f.raw)
	at := find(t, all, manifestName)
	m, err := decodeManifest(all[at].body)
	require.NoError(t, err)
	change(m)
	raw, err := json.Marshal(m)
	require.NoError(t, err)
	all[at].body = seal(t, raw)
	return pack(t, all)
}
