package archive

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// acceptable checks what is promised of a file that Open took: everything can be read
// again, names are the names of entries, and the file is a backup from its first byte to
// its last.
func acceptable(t *testing.T, raw []byte, a *Archive) {
	t.Helper()
	got, err := contents(a)
	require.NoError(t, err)
	require.Len(t, a.entries, len(got))
	for name, e := range a.entries {
		_, ok := parseName(name)
		require.True(t, ok, "%q", name)
		require.LessOrEqual(t, e.at+e.size, int64(len(raw)))
	}
	_, err = open(t, raw[:len(raw)-1])
	require.Error(t, err)
}

// FuzzOpen: no file makes Open fail otherwise than by an error, or take what is no backup.
func FuzzOpen(f *testing.F) {
	raw := newFixture(f).raw
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Add([]byte("not a backup"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := open(t, raw)
		if err != nil {
			require.Nil(t, a)
			return
		}
		acceptable(t, raw, a)
	})
}

// FuzzManifest: the same of a manifest whose checksum is right, beside the entries of a
// good backup.
func FuzzManifest(f *testing.F) {
	fixture := newFixture(f)
	all := unpack(f, fixture.raw)
	last := len(all) - 1
	var e envelope
	require.NoError(f, json.Unmarshal(all[last].body, &e))
	f.Add([]byte(e.Manifest))
	f.Add(bytes.Replace(e.Manifest, []byte(`"shards":2`), []byte(`"shards":4096`), 1))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, manifest []byte) {
		if !json.Valid(manifest) {
			var err error
			manifest, err = json.Marshal(string(manifest))
			require.NoError(t, err)
		}
		items := append(append([]item{}, all[:last]...), item{all[last].Header, seal(t, manifest)})
		raw := pack(t, items)
		a, err := open(t, raw)
		if err != nil {
			require.ErrorAs(t, err, new(*RefusedError))
			return
		}
		acceptable(t, raw, a)
	})
}
