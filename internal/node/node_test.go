package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
)

// patience bounds every wait of a test: far more than anything takes.
const patience = 2 * time.Minute

// lockedBuffer collects a log written from several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// rig is a node under test.
type rig struct {
	t       *testing.T
	node    *Node
	log     *lockedBuffer
	options Options
}

func testOptions(t *testing.T) Options {
	c := config.Defaults()
	c.Data = filepath.Join(t.TempDir(), "felix-data")
	c.Listen, c.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Storage.MinFree = 0
	return Options{Config: c, Version: "test", Boot: "boot", ContextFile: filepath.Join(t.TempDir(), "felix", "context.yaml")}
}

func start(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, log: &lockedBuffer{}, options: testOptions(t)}
	if change != nil {
		change(&r.options)
	}
	r.options.Log = slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	n, err := Start(t.Context(), r.options)
	require.NoError(t, err)
	r.node = n
	t.Cleanup(r.stop)
	return r
}

func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.node.Stop(ctx); err != nil {
		r.t.Errorf("stop: %v\n%s", err, r.log.String())
	}
	http.DefaultClient.CloseIdleConnections()
}

func (r *rig) token(perms ...string) string {
	r.t.Helper()
	token, err := r.node.creds.keys.Mint(auth.MintRequest{Tenant: "default", Subject: "p:test", Permissions: append(perms, auth.AllPermissions("default")...), Audience: auth.AudienceAPI})
	require.NoError(r.t, err)
	return token
}

func (r *rig) call(method, path, body string) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.node.HTTPURL()+path, strings.NewReader(body))
	require.NoError(r.t, err)
	req.Header.Set("Authorization", "Bearer "+r.token())
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, raw
}

// awaitReady polls /ready until it says so, with the test's deadline.
func (r *rig) awaitReady() api.Readiness {
	r.t.Helper()
	require.NoError(r.t, r.node.broker.WaitReady(r.t.Context()))
	var rd api.Readiness
	require.Eventually(r.t, func() bool {
		rd = r.node.Ready()
		return rd.Ready
	}, patience, time.Millisecond)
	return rd
}

func TestNodeServes(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	status, raw := r.call("GET", "/ready", "")
	require.Equal(t, 200, status, string(raw))
	status, raw = r.call("GET", "/v1/tenants/default/namespaces", "")
	require.Equal(t, 200, status)
	require.Contains(t, string(raw), `"namespace":"default"`)

	// The same number on TCP and UDP, and a certificate that the written authority signed.
	pem, err := os.ReadFile(r.node.creds.ca)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(pem))
	conn, err := tls.Dial("tcp", r.node.ClientAddr(), &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{auth.ALPN}})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	_, err = net.ListenPacket("udp", r.node.ClientAddr())
	require.Error(t, err, "UDP of the same number is taken")
}

func TestFirstStartFiles(t *testing.T) {
	r := start(t, nil)
	d := r.options.Config.Data
	for _, name := range []string{"LOCK", "node.json", "tls/ca.crt", "tls/server.crt", "tls/server.key", "keys/default", "streams", resetKey} {
		info, err := os.Stat(filepath.Join(d, name))
		require.NoError(t, err, name)
		require.Zero(t, info.Mode().Perm()&0o077&^0o055, name)
	}
	for _, name := range []string{"tls/server.key", "node.json", resetKey} {
		info, err := os.Stat(filepath.Join(d, name))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s is for its owner alone", name)
	}
	info, err := os.Stat(r.options.ContextFile)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	all, err := config.ReadContexts(r.options.ContextFile)
	require.NoError(t, err)
	c := all.Contexts["local"]
	require.Equal(t, "local", all.Current)
	require.Equal(t, []string{r.node.ClientAddr()}, c.Brokers)
	require.Equal(t, r.node.HTTPURL(), c.HTTP)
	require.FileExists(t, c.CAFile)
	require.True(t, filepath.IsAbs(c.CAFile) && filepath.IsAbs(c.SigningKey))
	key, err := auth.LoadSigningKey(c.SigningKey)
	require.NoError(t, err)
	token, err := key.Mint(auth.MintRequest{Tenant: "default", Subject: "x", Permissions: auth.AllPermissions("default")})
	require.NoError(t, err)
	_, err = auth.NewVerifier(auth.VerifierOptions{Keys: r.node.creds.keys}).Verify("default", token)
	require.NoError(t, err)
}

// A second start keeps identity, keys and certificates, so that clients go on.
func TestSecondStartKeepsWhatTheFirstMade(t *testing.T) {
	r := start(t, nil)
	id, reset, leaf := r.node.data.DiskID, r.node.creds.resetKey, r.node.creds.certificate.Leaf().SerialNumber
	token := r.token()
	r.stop()
	second := start(t, func(o *Options) { *o = r.options })
	require.Equal(t, id, second.node.data.DiskID)
	require.True(t, second.node.data.Clean)
	require.Equal(t, reset, second.node.creds.resetKey)
	require.Equal(t, leaf, second.node.creds.certificate.Leaf().SerialNumber)
	_, err := auth.NewVerifier(auth.VerifierOptions{Keys: second.node.creds.keys, Audience: auth.AudienceAPI}).Verify("default", token)
	require.NoError(t, err)
}

// Somebody's own contexts are left as they are.
func TestOtherContextsAreKept(t *testing.T) {
	o := testOptions(t)
	mine := &config.Contexts{Current: "prod", Contexts: map[string]config.Context{"prod": {Brokers: []string{"broker.example:5000"}}}}
	require.NoError(t, mine.Write(o.ContextFile))
	start(t, func(p *Options) { *p = o })
	all, err := config.ReadContexts(o.ContextFile)
	require.NoError(t, err)
	require.Equal(t, "prod", all.Current)
	require.Equal(t, mine.Contexts["prod"], all.Contexts["prod"])
	require.Contains(t, all.Contexts, "local")
}

func TestOwnCertificatesAndKeys(t *testing.T) {
	paths, _, err := auth.EnsureCertificates(t.TempDir(), auth.CertificateOptions{})
	require.NoError(t, err)
	keys, err := auth.OpenKeys(t.TempDir())
	require.NoError(t, err)
	_, err = keys.Ensure("acme")
	require.NoError(t, err)
	keyFile, err := keys.SigningKeyPath("acme")
	require.NoError(t, err)
	r := start(t, func(o *Options) {
		c := &o.Config
		c.TLS.Cert, c.TLS.Key = paths.Cert, paths.Key
		c.HTTP.TLSCert, c.HTTP.TLSKey = paths.Cert, paths.Key
		c.Auth.Keys = filepath.Dir(filepath.Dir(keyFile))
		c.Listen = "0.0.0.0:0"
		require.NoError(t, c.Validate())
	})
	require.NoFileExists(t, r.options.ContextFile, "keys of one's own are not written into a context")
	require.Contains(t, r.log.String(), "no context is written", "and what commands need is said")
	require.Contains(t, r.log.String(), `"controlplane_url":"`+r.node.HTTPURL())
	require.NoDirExists(t, filepath.Join(r.options.Config.Data, "tls"))
	require.NoDirExists(t, filepath.Join(r.options.Config.Data, "keys"))
	require.True(t, strings.HasPrefix(r.node.HTTPURL(), "https://"))
	tlsConfig, err := auth.ClientTLS(paths.CA, "localhost")
	require.NoError(t, err)
	tlsConfig.NextProtos = nil
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig}}
	defer client.CloseIdleConnections()
	token, err := keys.Mint(auth.MintRequest{Tenant: "acme", Subject: "x", Permissions: auth.AllPermissions("acme"), Audience: auth.AudienceAPI})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.node.HTTPURL()+"/v1/tenants/acme/namespaces", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode, "the tenant of the keys exists")
}

func TestBodyLimitIsTaken(t *testing.T) {
	r := start(t, func(o *Options) { o.Config.HTTP.MaxBodyBytes = 2048 })
	status, _ := r.call("POST", "/v1/tenants/default/namespaces/default/streams", `{"stream":"`+strings.Repeat("a", 4096)+`"}`)
	require.Equal(t, 413, status)
}

// Each start that fails says why, and leaves neither a lock nor a listener.
func TestStartRefused(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	running := start(t, nil)
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"http address taken":   {func(o *Options) { o.Config.HTTP.Listen = taken.Addr().String() }, "http.listen " + taken.Addr().String() + ": another process listens there"},
		"client address taken": {func(o *Options) { o.Config.Listen = taken.Addr().String() }, "listen " + taken.Addr().String() + ": another process listens there"},
		"directory in use":     {func(o *Options) { o.Config.Data = running.options.Config.Data }, "in use by another process"},
		"certificate missing":  {func(o *Options) { o.Config.TLS.Cert, o.Config.TLS.Key = "nowhere.crt", "nowhere.key" }, "nowhere.crt"},
		"keys missing":         {func(o *Options) { o.Config.Auth.Keys = filepath.Join(t.TempDir(), "nokeys") }, "auth.keys"},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			c.change(&o)
			o.Log = slog.New(slog.DiscardHandler)
			n, err := Start(t.Context(), o)
			require.Nil(t, n)
			require.ErrorContains(t, err, c.want)
			if o.Config.Data != running.options.Config.Data {
				free := testOptions(t)
				free.Config.Data, free.Log = o.Config.Data, o.Log
				n, err := Start(t.Context(), free)
				require.NoError(t, err, "what a failed start left behind")
				require.NoError(t, n.Stop(t.Context()))
			}
		})
	}
}

// Whatever is not Felix's is left alone, in each directory, with one warning.
func TestStrayFilesAreWarnedOf(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	base := "/v1/tenants/default/namespaces/default/"
	for path, body := range map[string]string{
		"streams": `{"stream":"orders","durable":true}`, "caches": `{"cache":"sessions"}`,
	} {
		status, raw := r.call(http.MethodPost, base+path, body)
		require.Less(t, status, 300, "%s", raw)
	}
	require.NoError(t, r.node.broker.WaitReady(t.Context()))
	data := r.options.Config.Data
	r.stop()
	require.NotContains(t, r.log.String(), "left alone", "nothing of Felix's is a stray")

	strays := []string{".DS_Store", "tmp~", "0001.segment.bak"}
	places := []string{"", "keys", "keys/default", "tls", "streams", "streams/made",
		"streams/caches", "streams/counters"}
	for _, place := range places {
		if place == "streams/counters" {
			require.NoError(t, os.MkdirAll(filepath.Join(data, place), 0o700)) // made with the first counter
		}
		require.DirExists(t, filepath.Join(data, place))
		for _, name := range strays {
			put(t, filepath.Join(data, place), name, "x")
		}
		require.NoError(t, os.Mkdir(filepath.Join(data, place, "empty dir"), 0o700))
	}
	second := start(t, func(o *Options) { *o = r.options })
	second.awaitReady()
	for _, place := range places {
		dir := filepath.Join(data, place)
		for _, name := range append([]string{"empty dir"}, strays...) {
			lines := 0
			for line := range strings.SplitSeq(second.log.String(), "\n") {
				var l struct{ Level, Msg, File, Dir string }
				if json.Unmarshal([]byte(line), &l) == nil && l.Level == "WARN" && (l.Dir == dir && l.File == name || l.Dir == filepath.Join(dir, name)) {
					lines++
				}
			}
			require.Equal(t, 1, lines, "%s in %s: one warning\n%s", name, place, second.log.String())
			_, err := os.Stat(filepath.Join(dir, name))
			require.NoError(t, err, "left alone")
		}
	}
}

func TestReloadTakesNewKeys(t *testing.T) {
	looks := make(chan time.Time)
	r := start(t, func(o *Options) { o.looks = looks })
	other, err := auth.OpenKeys(filepath.Join(r.options.Config.Data, "keys"))
	require.NoError(t, err)
	id, err := other.Stage("default")
	require.NoError(t, err)
	require.NoError(t, other.Activate("default", id))
	token, err := other.Mint(auth.MintRequest{Tenant: "default", Subject: "x", Permissions: auth.AllPermissions("default"), Audience: auth.AudienceAPI})
	require.NoError(t, err)
	verify := func() error {
		_, err := auth.NewVerifier(auth.VerifierOptions{Keys: r.node.creds.keys, Audience: auth.AudienceAPI}).Verify("default", token)
		return err
	}
	require.Error(t, verify())
	looks <- time.Time{}
	looks <- time.Time{} // taken when the first is done
	require.NoError(t, verify())
}

// Without its metadata a broker does not start. The refusal says which directory and
// what is wrong with it, and the damaged log stays as it was.
func TestDamagedMetadataIsNamed(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	data := r.options.Config.Data
	r.stop()
	file := filepath.Join(data, metaDir, "00000000000000000000.log")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	raw[0] ^= 0xff
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	o := testOptions(t)
	o.Config.Data, o.Log = data, slog.New(slog.DiscardHandler)
	n, err := Start(t.Context(), o)
	require.Nil(t, n)
	require.ErrorContains(t, err, "metadata")
	require.ErrorContains(t, err, filepath.Join(data, metaDir))
	left, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, raw, left)
}

// Metadata that is shorter than what had been on the device knows of fewer streams than
// there are: it is refused, and left as it is.
func TestCutMetadataIsRefused(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	r.stop()
	file := filepath.Join(r.options.Config.Data, metaDir, "00000000000000000000.log")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	attempt := func() error {
		o := testOptions(t)
		o.Config.Data, o.Log = r.options.Config.Data, slog.New(slog.DiscardHandler)
		n, err := Start(t.Context(), o)
		if err == nil {
			require.NoError(t, n.Stop(t.Context()))
		}
		return err
	}
	require.NoError(t, os.Truncate(file, int64(len(whole))/2))
	for range 2 {
		require.ErrorContains(t, attempt(), "was on the device up to byte")
	}
	require.NoError(t, os.Remove(file))
	require.ErrorContains(t, attempt(), "was on the device up to byte")
	require.NoError(t, os.WriteFile(file, whole, 0o600))
	require.NoError(t, attempt(), "restored, it serves")
}

// What a broker would start without, and say of everything acknowledged that it never
// was: a storage volume that is not mounted, metadata that was not restored.
func TestMissingPlacesAreRefused(t *testing.T) {
	r := start(t, nil)
	r.awaitReady()
	status, raw := r.call(http.MethodPost, "/v1/tenants/default/namespaces/default/streams",
		`{"stream":"orders","kind":"Stream","shards":1,"durable":true,"replication_factor":1,"consistency":"Leader","delivery":"AtLeastOnce"}`)
	require.Less(t, status, 300, "%s", raw)
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(filepath.Join(r.options.Config.Data, logsDir))
		return err == nil && len(entries) > 0
	}, patience, time.Millisecond)
	r.stop()
	data := r.options.Config.Data
	attempt := func() error {
		o := testOptions(t)
		o.Config.Data, o.Log = data, slog.New(slog.DiscardHandler)
		n, err := Start(t.Context(), o)
		if err == nil {
			require.NoError(t, n.Stop(t.Context()))
		}
		return err
	}
	for _, c := range []struct {
		dir  string
		want error
	}{{logsDir, ErrMissing}, {metaDir, ErrNoMeta}} {
		t.Run(c.dir, func(t *testing.T) {
			dir := filepath.Join(data, c.dir)
			require.NoError(t, os.Rename(dir, dir+".away"))
			require.ErrorIs(t, attempt(), c.want)
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700))
			if c.dir == logsDir {
				require.ErrorIs(t, attempt(), c.want, "an empty volume in its place")
			}
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Rename(dir+".away", dir))
			require.NoError(t, attempt(), "put back, it serves")
		})
	}
	dir := filepath.Join(data, logsDir)
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, os.WriteFile(filepath.Join(data, nodeName), nil, 0o600))
	require.NoError(t, attempt(), "given up, as the refusal says")
}
