package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	f := newFixture(t)
	heard := int64(0)
	a, err := Open(t.Context(), bytes.NewReader(f.raw), int64(len(f.raw)), Options{Progress: func(n int64) { heard += n }})
	require.NoError(t, err)
	require.Equal(t, f.defs, a.Definitions)
	require.Equal(t, Origin{CreatedAt: cutAt, Broker: "test", DiskID: "0123"}, a.Origin)
	totals := a.Totals()
	require.Equal(t, Totals{Tenants: 1, Streams: 2, Caches: 1, Logs: 5, Segments: totals.Segments, Records: 46, Bytes: totals.Bytes, Secrets: 1}, totals)
	require.Greater(t, totals.Segments, 5)
	expected, ok := Expected(f.raw[:2048])
	require.True(t, ok)
	require.Equal(t, expected, totals.Bytes)
	require.Greater(t, heard, totals.Bytes)

	for i := range a.Logs {
		l := &a.Logs[i]
		require.Equal(t, cutAt, l.CutAt)
		dir := t.TempDir()
		for j, s := range l.Segments {
			var b bytes.Buffer
			_, err := b.ReadFrom(a.Segment(i, j))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.SegmentName(s.ID)), b.Bytes(), 0o600))
		}
		log, err := storage.Open(t.Context(), dir, storage.Options{FS: vfs.OS(), VerifyAllOnOpen: true})
		require.NoError(t, err)
		var page storage.Page
		require.NoError(t, log.Read(t.Context(), &page, storage.ReadRange{}))
		var got []string
		for _, r := range page.Records {
			got = append(got, string(r.Payload))
		}
		require.Equal(t, f.want[l.LogName], got)
		require.NoError(t, log.Close(t.Context()))
	}
	got, err := contents(a)
	require.NoError(t, err)
	require.Equal(t, "kid-1", got["keys/t/current"])
}

// everyByte makes the next two tests try each byte, and not one of a few.
const everyByte = "FELIX_ARCHIVE_EVERY_BYTE"

func step(of int) int {
	if os.Getenv(everyByte) != "" {
		return 1
	}
	return of
}

// A backup that was cut off, at any byte, is refused, and says that it is incomplete.
func TestEveryCutIsRefused(t *testing.T) {
	f := newFixture(t)
	for n := 0; n < len(f.raw); n += step(17) {
		_, err := open(t, f.raw[:n])
		if !errors.Is(err, ErrIncomplete) && !(n < 1024 && errors.Is(err, ErrNotBackup)) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(f.raw), err)
		}
	}
}

// A flipped bit is found, unless nothing that is used changes: the padding of entries,
// and what a tar header says of owners and times.
func TestEveryFlippedBitIsFoundOrWithoutEffect(t *testing.T) {
	f := newFixture(t)
	good, err := open(t, f.raw)
	require.NoError(t, err)
	want, err := contents(good)
	require.NoError(t, err)
	for i := 0; i < len(f.raw); i += step(11) {
		raw := bytes.Clone(f.raw)
		raw[i] ^= 1 << (i % 8)
		a, err := open(t, raw)
		if err != nil {
			var r *RefusedError
			require.ErrorAs(t, err, &r, "byte %d", i)
			continue
		}
		got, err := contents(a)
		require.NoError(t, err)
		require.Equal(t, good.Manifest, a.Manifest, "byte %d", i)
		require.Equal(t, want, got, "byte %d", i)
	}
}

func TestRefusedFiles(t *testing.T) {
	f := newFixture(t)
	all := unpack(t, f.raw)
	orders := LogName{KindStream, "t", "n", "orders", 0}.entry(1)
	if !slices.ContainsFunc(all, func(e item) bool { return e.Name == orders }) {
		orders = LogName{KindStream, "t", "n", "orders", 0}.entry(0)
	}
	with := func(change func(all []item) []item) []byte {
		return pack(t, change(unpack(t, f.raw)))
	}
	before := func(e item) []byte { // an entry more, before the manifest
		return with(func(all []item) []item { return slices.Insert(all, len(all)-1, e) })
	}
	named := func(name string) item { return item{tar.Header{Typeflag: tar.TypeReg, Name: name}, []byte("x")} }
	for _, c := range []struct {
		name   string
		raw    []byte
		reason error
		phrase string
	}{
		{"empty", nil, ErrNotBackup, headName},
		{"text", []byte(strings.Repeat("not a tar file\n", 100)), ErrNotBackup, headName},
		{"another tar", pack(t, []item{named("etc/passwd")}), ErrNotBackup, headName},
		{"head of another program", with(func(all []item) []item { all[0].body = []byte(`{"format":"other","version":1}`); return all }), ErrNotBackup, `"other"`},
		{"head that is no JSON", with(func(all []item) []item { all[0].body = []byte(`{`); return all }), ErrNotBackup, "cannot be read"},
		{"a newer head", with(func(all []item) []item {
			all[0].body = []byte(`{"format":"felix-backup","version":2,"new":1}`)
			return all
		}), ErrVersion, "version 2"},
		{"a newer manifest", with(func(all []item) []item {
			i := find(t, all, manifestName)
			all[i].body = []byte(`{"format":"felix-backup","version":9,"manifest":[]}`)
			return all
		}), ErrVersion, "version 9"},
		{"no manifest", with(func(all []item) []item { return all[:len(all)-1] }), ErrIncomplete, manifestName},
		{"an unsealed manifest", with(func(all []item) []item {
			i := find(t, all, manifestName)
			all[i].body = bytes.Replace(all[i].body, []byte("The Tenant"), []byte("An Tenant."), 1)
			return all
		}), ErrDamaged, "checksum"},
		{"an entry behind the manifest", with(func(all []item) []item { return append(all, named("stream/t/n/orders/0/x")) }), ErrDamaged, "follows the manifest"},
		{"bytes behind the end", append(bytes.Clone(f.raw), 0), ErrDamaged, "follows the manifest"},
		{"an entry twice", with(func(all []item) []item {
			i := find(t, all, orders)
			return slices.Insert(all, i, all[i])
		}), ErrDamaged, "second time"},
		{"an entry too few", with(func(all []item) []item {
			i := find(t, all, orders)
			return slices.Delete(all, i, i+1)
		}), ErrDamaged, "not there"},
		{"an entry too many", before(item{tar.Header{Typeflag: tar.TypeReg, Name: LogName{KindStream, "t", "n", "orders", 0}.entry(77)}, []byte("x")}), ErrDamaged, "not in the manifest"},
		{"an entry of another length", with(func(all []item) []item {
			i := find(t, all, orders)
			all[i].body = all[i].body[:len(all[i].body)-1]
			return all
		}), ErrDamaged, "bytes, and the manifest says"},
		{"an entry of other bytes", with(func(all []item) []item {
			i := find(t, all, orders)
			all[i].body = bytes.Clone(all[i].body)
			all[i].body[100] ^= 1
			return all
		}), ErrDamaged, "checksum"},
		{"a way out", before(named("../../etc/passwd")), ErrDamaged, "a name that no entry"},
		{"a way out in the middle", before(named("stream/t/../orders/0/00000000000000000000.log")), ErrDamaged, "a name that no entry"},
		{"an absolute name", before(named("/etc/passwd")), ErrDamaged, "a name that no entry"},
		{"a secret on its way out", before(named("secrets/keys/../../x")), ErrDamaged, "a name that no entry"},
		{"a name written otherwise", before(named("stream/t/n/orders/00/00000000000000000000.log")), ErrDamaged, "a name that no entry"},
		{"a link", before(item{tar.Header{Typeflag: tar.TypeSymlink, Name: orders, Linkname: "/etc/passwd"}, nil}), ErrDamaged, "not a file"},
		{"a directory", before(item{tar.Header{Typeflag: tar.TypeDir, Name: "stream/"}, nil}), ErrDamaged, "not a file"},
		{"attributes", before(item{tar.Header{Typeflag: tar.TypeReg, Name: orders, PAXRecords: map[string]string{"FELIX.x": "y"}}, []byte("x")}), ErrDamaged, "FELIX.x"},
		{"a secret that is too large", before(item{tar.Header{Typeflag: tar.TypeReg, Name: "secrets/keys/t/x"}, make([]byte, MaxSecretBytes+1)}), ErrDamaged, "at most"},
		{"unknown fields", with(func(all []item) []item {
			i := find(t, all, manifestName)
			all[i].body = seal(t, []byte(`{"surprise":1}`))
			return all
		}), ErrDamaged, "surprise"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := open(t, c.raw)
			require.Nil(t, a)
			require.ErrorIs(t, err, c.reason)
			require.ErrorContains(t, err, c.phrase)
		})
	}
}

// What the manifest says has to fit together, though its checksum is right.
func TestRefusedManifests(t *testing.T) {
	f := newFixture(t)
	index := func(m *Manifest, name LogName) int {
		return slices.IndexFunc(m.Logs, func(l Log) bool { return l.LogName == name })
	}
	first := LogName{KindStream, "t", "n", "orders", 0}
	for _, c := range []struct {
		name   string
		change func(m *Manifest)
		phrase string
	}{
		{"a tenant twice", func(m *Manifest) { m.Tenants = append(m.Tenants, m.Tenants[0]) }, "twice"},
		{"a tenant that is no name", func(m *Manifest) { m.Tenants[0].ID = "../t" }, "invalid definition"},
		{"a namespace without its tenant", func(m *Manifest) { m.Namespaces[0].Tenant = "other" }, "without its tenant"},
		{"a stream without its namespace", func(m *Manifest) { m.Streams[0].Namespace = "other" }, "without its namespace"},
		{"a stream that is no name", func(m *Manifest) { m.Streams[0].Name = "a/b" }, "invalid definition"},
		{"a stream twice", func(m *Manifest) { m.Streams = append(m.Streams, m.Streams[0]) }, "twice"},
		{"a cache of no shards", func(m *Manifest) { m.Caches[0].Shards = 0 }, "invalid definition"},
		{"a shard more", func(m *Manifest) { m.Streams[0].Shards++ }, "the logs of 3 shards, and defines 4"},
		{"a shard less", func(m *Manifest) { m.Streams[0].Shards-- }, "which nothing it defines has"},
		{"a stream in memory", func(m *Manifest) { m.Streams[0].Durable = false }, "which nothing it defines has"},
		{"an unknown kind", func(m *Manifest) { m.Logs[0].Kind = "table" }, "which nothing it defines has"},
		{"a log twice", func(m *Manifest) { m.Logs = append(m.Logs, m.Logs[0]) }, "twice"},
		{"a log less", func(m *Manifest) { i := index(m, first); m.Logs = slices.Delete(m.Logs, i, i+1) }, "the logs of 2 shards"},
		{"no segments", func(m *Manifest) { m.Logs[index(m, first)].Segments = nil }, "without a segment"},
		{"a segment less", func(m *Manifest) { l := &m.Logs[index(m, first)]; l.Segments = slices.Delete(l.Segments, 1, 2) }, "a gap"},
		{"segments in another order", func(m *Manifest) { slices.Reverse(m.Logs[index(m, first)].Segments) }, "a gap"},
		{"a segment twice", func(m *Manifest) {
			l := &m.Logs[index(m, first)]
			l.Segments = append(l.Segments, l.Segments[len(l.Segments)-1])
		}, "impossible segment"},
		{"another cut", func(m *Manifest) { m.Logs[index(m, first)].Next++ }, "not at its cut"},
		{"another start", func(m *Manifest) {
			l := &m.Logs[index(m, LogName{KindGroups, "t", "n", "orders", 1})]
			l.First, l.Next, l.Segments[0].Base, l.Segments[0].Next = 5, 5, 5, 5
		}, "begins at offset 0, and the manifest says 5"},
		{"a record more", func(m *Manifest) {
			l := &m.Logs[index(m, LogName{KindStream, "t", "n", "orders", 1})]
			l.Next, l.Segments[0].Next = 2, 2
		}, "ends before offset 1, and the manifest says 2"},
		{"a negative length", func(m *Manifest) { m.Logs[0].Segments[0].Bytes = -1 }, "impossible segment"},
		{"a secret elsewhere", func(m *Manifest) { m.Secrets[0].Path = "../LOCK" }, "not there"},
		{"a secret twice", func(m *Manifest) { m.Secrets = append(m.Secrets, m.Secrets[0]) }, "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := open(t, f.edited(t, c.change))
			require.Nil(t, a)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, c.phrase)
		})
	}
}

// A checksum over a damaged record does not make it a record.
func TestDamagedRecordsAreRefused(t *testing.T) {
	f := newFixture(t)
	all := unpack(t, f.raw)
	name := LogName{KindStream, "t", "n", "orders", 0}.entry(0)
	i := find(t, all, name)
	all[i].body = bytes.Clone(all[i].body)
	all[i].body[segment.HeaderSize+40] ^= 1
	f.raw = pack(t, all)
	sum := Checksum(crc32.ChecksumIEEE(all[i].body))
	_, err := open(t, f.edited(t, func(m *Manifest) {
		for j := range m.Logs {
			if m.Logs[j].entry(0) == name {
				m.Logs[j].Segments[0].Checksum = sum
			}
		}
	}))
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "damaged record")
}

// The file is read again when it is used, and compared again.
func TestAChangeAfterTheVerificationIsFound(t *testing.T) {
	f := newFixture(t)
	a, err := open(t, f.raw)
	require.NoError(t, err)
	f.raw[a.entries[a.Logs[1].entry(0)].at+50] ^= 1
	_, err = contents(a)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "changed after")
}

func TestOpenCanBeGivenUp(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, bytes.NewReader(f.raw), int64(len(f.raw)), Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestNamesOfEntries(t *testing.T) {
	n := LogName{KindCounters, "t", "n", "prices", 12}
	got, ok := parseName(n.entry(3))
	require.True(t, ok)
	require.Equal(t, entryName{log: n, id: 3}, got)
	long := meta.Name{Tenant: strings.Repeat("t", 128), Namespace: strings.Repeat("n", 128), Name: strings.Repeat("s", 128)}
	n = LogName{KindCache, long.Tenant, long.Namespace, long.Name, 4095}
	_, ok = parseName(n.entry(1 << 40))
	require.True(t, ok)
	for path, want := range map[string]bool{
		"keys/t/current": true, "keys/t/_kid-1.pem": true, "tls/ca.pem": true,
		"keys": false, "keys/": false, "keys/.": false, "keys/..": false, "keys/../x": false, "tls/a/b/c": false, "LOCK": false, "/keys/t": false, "meta/x": false, "keys/t/": false, "keys//t": false,
	} {
		require.Equal(t, want, SecretPath(path), path)
	}
}
