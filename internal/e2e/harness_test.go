package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/internal/node"
	"github.com/felixlog/felix/internal/testkit/leak"
	"github.com/felixlog/felix/storage/vfs"
)

// patience bounds every wait of a test: far more than anything takes.
const patience = 3 * time.Minute

// patient goes on asking a broker that was killed until it serves again. The default gives
// up after waits that are drawn, about a second and a half in all and at times next to
// none, which a start on a busy machine may well outlast.
var patient = client.RetryPolicy{Attempts: int(patience / time.Second), Base: 100 * time.Millisecond, Max: 2 * time.Second}

// childEnv makes this test program a broker: its value is the options as JSON.
const childEnv = "FELIX_E2E_BROKER"

func TestMain(m *testing.M) {
	if options := os.Getenv(childEnv); options != "" {
		if err := serve(options); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leak.Main(m)
}

// settings are what a test changes of a broker's defaults.
type settings struct {
	Dir, Listen, HTTP string
	Fsync             string
	StorageDir        string // of the shards; empty: in the data directory
	// DataLimit is how much memory of its own the process may map, in bytes: 0 sets no limit.
	DataLimit uint64
	// KillAtPage has the process kill itself when a compaction that began after it was ready
	// reads its so manieth page; 0 does not.
	KillAtPage int64
}

func (s *settings) options() node.Options {
	c := config.Defaults()
	c.Data = filepath.Join(s.Dir, "data")
	c.Listen, c.HTTP.Listen = s.Listen, s.HTTP
	c.Storage.MinFree, c.Storage.Dir = 0, s.StorageDir
	if s.Fsync != "" {
		c.Storage.FsyncMode = s.Fsync
	}
	return node.Options{Config: c, Version: "e2e", ContextFile: filepath.Join(s.Dir, "context.yaml"), Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
}

// serve is the broker process: it says where it listens and runs until its parent closes
// its input. For each line of it, it says how much memory it keeps.
func serve(options string) error {
	var s settings
	if err := json.Unmarshal([]byte(options), &s); err != nil {
		return err
	}
	if s.DataLimit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: s.DataLimit, Max: s.DataLimit}); err != nil {
			return err
		}
	}
	o := s.options()
	var pages *compactionPages
	if s.KillAtPage > 0 {
		pages = &compactionPages{FS: vfs.OS(), at: s.KillAtPage}
		o.FS = pages
	}
	n, err := node.Start(context.Background(), o)
	if err != nil {
		return err
	}
	fmt.Println(n.ClientAddr(), n.HTTPURL())
	if pages != nil {
		for !n.Ready().Ready {
			runtime.Gosched()
		}
		pages.armed.Store(true)
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(keptBytes())
	}
	if err := in.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return n.Stop(ctx)
}

// keptBytes is what this process has in memory that its collector cannot take away: how
// much of the rest is there yet is the collector's choice.
func keptBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools let go in the second
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// process is a broker in a process of its own.
type process struct {
	t testing.TB
	settings
	clients, http string
	cmd           *exec.Cmd
	stdin         io.WriteCloser
	stdout        *bufio.Reader
	stderr        *bytes.Buffer
}

// keeps is how much memory the broker keeps, in bytes.
func (p *process) keeps() (n int64) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.stdin)
	require.NoError(p.t, err)
	_, err = fmt.Fscanln(p.stdout, &n)
	require.NoError(p.t, err)
	return n
}

func newProcess(t testing.TB, fsync string) *process {
	t.Helper()
	p := &process{t: t, settings: settings{Dir: t.TempDir(), Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Fsync: fsync}}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// start runs the broker, on the ports it had before. Meanwhile the system may have given
// one of them to another program, for as long as that needs it.
func (p *process) start() {
	p.t.Helper()
	for until := time.Now().Add(patience); ; {
		line, err := p.launch()
		if err == nil {
			fields := strings.Fields(line)
			require.Len(p.t, fields, 2, line)
			p.clients, p.http = fields[0], fields[1]
			p.Listen, p.HTTP = p.clients, strings.TrimPrefix(p.http, "http://")
			return
		}
		ended := p.cmd.Wait()
		p.cmd = nil
		if !strings.Contains(p.stderr.String(), "another process listens there") || time.Now().After(until) {
			p.t.Fatalf("the broker did not start: %v, %v: %s", err, ended, p.stderr)
		}
	}
}

// launch starts a process and returns what it says when it serves.
func (p *process) launch() (string, error) {
	p.t.Helper()
	options, err := json.Marshal(&p.settings)
	require.NoError(p.t, err)
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(options))
	p.stderr = &bytes.Buffer{}
	p.cmd.Stderr = p.stderr
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(p.t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, p.cmd.Start())
	p.stdout = bufio.NewReader(out)
	return p.stdout.ReadString('\n')
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Errorf("kill the broker: %v", err)
	}
	// The state is that it was killed, which is what was asked.
	if err := p.cmd.Wait(); err != nil && p.cmd.ProcessState.Success() {
		p.t.Error(err)
	}
	p.cmd = nil
}

// stop lets the process end in its own way.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.stdin.Close())
	require.NoError(p.t, p.cmd.Wait(), "the broker did not end well: %s", p.stderr)
	p.cmd = nil
}

func (s *settings) context(t testing.TB) config.Context {
	t.Helper()
	file, err := config.ReadContexts(filepath.Join(s.Dir, "context.yaml"))
	require.NoError(t, err)
	c, ok := file.Contexts[config.LocalContext]
	require.True(t, ok, "the broker wrote no context")
	return c
}

func (s *settings) token(t testing.TB, audience string) string {
	t.Helper()
	key, err := auth.LoadSigningKey(s.context(t).SigningKey)
	require.NoError(t, err)
	token, err := key.Mint(auth.MintRequest{Tenant: "default", Subject: "e2e", Permissions: auth.AllPermissions("default"), Audience: audience})
	require.NoError(t, err)
	return token
}

func (s *settings) dial(t testing.TB, addr string, opts ...client.ClientOption) *client.Client {
	t.Helper()
	tlsConfig, err := auth.ClientTLS(s.context(t).CAFile, "")
	require.NoError(t, err)
	c, err := client.Dial(soon(t), []string{addr}, append([]client.ClientOption{
		client.WithTLS(tlsConfig), client.WithToken(client.StaticToken(s.token(t, auth.AudienceBroker))), client.WithRetry(patient)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func (p *process) dial(opts ...client.ClientOption) *client.Client {
	p.t.Helper()
	return p.settings.dial(p.t, p.clients, opts...)
}

func (s *settings) createStream(t testing.TB, url string, stream api.Stream) {
	t.Helper()
	stream.Kind, stream.ReplicationFactor, stream.Consistency, stream.Delivery = "Stream", 1, "Leader", "AtLeastOnce"
	s.create(t, url, "streams", &stream)
}

func (s *settings) createCache(t testing.TB, url string, c api.Cache) {
	t.Helper()
	c.Consistency, c.ReplicationFactor = "Leader", 1
	s.create(t, url, "caches", &c)
}

// create makes an object of the default namespace.
func (s *settings) create(t testing.TB, url, collection string, object any) {
	t.Helper()
	body, err := json.Marshal(object)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(soon(t), http.MethodPost, url+"/v1/tenants/default/namespaces/default/"+collection, bytes.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.token(t, auth.AudienceAPI))
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Less(t, resp.StatusCode, 300, "%s", text)
}

func (p *process) createStream(name string, shards int) {
	p.t.Helper()
	p.settings.createStream(p.t, p.http, api.Stream{Stream: name, Shards: uint32(shards), Durable: true})
}

// soon is a context that ends long after any of these tests should have.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func numbered(i int) []byte { return fmt.Appendf(nil, "record %d", i) }
