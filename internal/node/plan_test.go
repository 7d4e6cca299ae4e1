package node

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/storage/vfs"
)

// Settings that no plan carries, and the test that shows what each does.
var shownElsewhere = map[string]string{
	"listen":              "TestNodeServes",
	"http.listen":         "TestNodeServes",
	"http.tls_cert":       "TestOwnCertificatesAndKeys",
	"http.tls_key":        "TestOwnCertificatesAndKeys",
	"http.max_body_bytes": "TestBodyLimitIsTaken",
	"tls.cert":            "TestOwnCertificatesAndKeys",
	"tls.key":             "TestOwnCertificatesAndKeys",
	"auth.keys":           "TestOwnCertificatesAndKeys",
	"log.level":           "TestLogLevels",
	"log.format":          "TestLogFormats",
	"shutdown.timeout":    "TestServeStopsWithinItsTime",
	"memory.limit":        "TestMemoryLimit",
}

// others gives each kind of setting a value that is not its default.
var others = map[string]string{
	"bool true": "false", "bool false": "true", "storage.mode": "none", "storage.fsync_mode": "none",
	"limits.auth_timeout": "0s", "storage.min_free": "1MiB", "limits.preauth_frame_bytes": "32KiB",
}

// A setting that is parsed and then ignored would be a lie: changing any of them
// changes what some part is started with.
func TestEverySettingReachesItsPart(t *testing.T) {
	dir := t.TempDir()
	base := config.Defaults()
	base.Data = dir
	want, err := planOf(&base, vfs.OS())
	require.NoError(t, err)
	count := 0
	for i, s := range config.Settings(&base) {
		if _, ok := shownElsewhere[s.Path]; ok {
			continue
		}
		count++
		changed := base
		set := config.Settings(&changed)[i]
		value, ok := others[s.Path]
		if !ok {
			value, ok = others[s.Kind+" "+s.Value()]
		}
		if !ok {
			value = "1234567"
			switch s.Kind {
			case "string":
				value = t.TempDir()
			case "count":
				value = "17"
			case "duration":
				value = "7s"
			}
		}
		require.NoError(t, set.Set(value), s.Path)
		require.NotEqual(t, s.Value(), set.Value(), s.Path)
		got, err := planOf(&changed, vfs.OS())
		require.NoError(t, err, s.Path)
		if reflect.DeepEqual(want, got) {
			t.Errorf("%s = %s changes nothing", s.Path, value)
		}
	}
	require.Greater(t, count, 25)
}

func TestReserveOfMinFreeAuto(t *testing.T) {
	o := config.Defaults()
	o.Data = t.TempDir()
	p, err := planOf(&o, vfs.OS())
	require.NoError(t, err)
	usage, err := vfs.OS().Usage(o.Data)
	require.NoError(t, err)
	require.Equal(t, min(int64(1<<30), usage.Total/20), p.disk.minFree)
	o.Storage.MinFree = 0
	p, err = planOf(&o, vfs.OS())
	require.NoError(t, err)
	require.Zero(t, p.disk.minFree)
}
