package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
)

// startTime bounds how long a broker may take to serve.
const startTime = time.Minute

// broker is the process under load.
type broker struct {
	cmd           *exec.Cmd
	clients, http string
	context       string // its context file
	exited        chan struct{}
	err           error // set before exited is closed

	mu    sync.Mutex
	lines []string // the last of its log
	seen  []event
}

// event is something the broker did by itself.
type event struct {
	at   time.Time
	kind string
}

// The kinds of events.
const (
	roll       = "roll"
	trim       = "trim"
	compaction = "compaction"
)

func startBroker(ctx context.Context, o Options) (*broker, error) {
	b := &broker{context: filepath.Join(o.Dir, "context.yaml"), exited: make(chan struct{})}
	b.cmd = o.Broker("serve", "--data", filepath.Join(o.Dir, "data"), "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
		"--context-file", b.context, "--log-format", "json", "--log-level", "debug", "--storage-min-free", "0",
		"--storage-segment-bytes", strconv.FormatInt(o.SegmentBytes, 10), "--storage-retention-check-interval", "1s")
	out, err := b.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	serving := make(chan struct{})
	go b.read(out, serving)
	timer := time.NewTimer(startTime)
	defer timer.Stop()
	select {
	case <-serving:
		return b, nil
	case <-b.exited:
		return nil, fmt.Errorf("the broker does not start: %w\n%s", b.err, b.tail())
	case <-timer.C:
		err = fmt.Errorf("the broker does not serve after %s\n%s", startTime, b.tail())
	case <-ctx.Done():
		err = ctx.Err()
	}
	b.kill()
	return nil, err
}

// read follows the broker's log to its end.
func (b *broker) read(out io.Reader, serving chan<- struct{}) {
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var line struct {
			Time                      time.Time
			Msg, Shard, Clients, HTTP string
		}
		if json.Unmarshal(sc.Bytes(), &line) != nil {
			line.Msg = ""
		}
		b.mu.Lock()
		b.lines = append(b.lines, sc.Text())
		b.lines = b.lines[max(0, len(b.lines)-40):]
		switch line.Msg {
		case "segment rolled":
			b.seen = append(b.seen, event{line.Time, roll})
		case "retention removed segments":
			// Segments of a stream go by retention; those of other logs when compaction has
			// copied what is needed of them.
			kind := trim
			if strings.Contains(line.Shard, " ") {
				kind = compaction
			}
			b.seen = append(b.seen, event{line.Time, kind})
		case "serving":
			if serving != nil {
				b.clients, b.http = line.Clients, line.HTTP
				close(serving)
				serving = nil
			}
		}
		b.mu.Unlock()
	}
	b.err = errors.Join(sc.Err(), b.cmd.Wait())
	close(b.exited)
}

func (b *broker) events() []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// tail is the end of the log.
func (b *broker) tail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.lines, "\n")
}

func (b *broker) kill() {
	if err := b.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return // it cannot be waited for then
	}
	<-b.exited
}

func (b *broker) stop() error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the broker: %w", err)
	}
	<-b.exited
	if b.err != nil {
		return fmt.Errorf("the broker did not stop well: %w\n%s", b.err, b.tail())
	}
	return nil
}

func (b *broker) identity() (config.Context, error) {
	file, err := config.ReadContexts(b.context)
	if err != nil {
		return config.Context{}, err
	}
	c, ok := file.Contexts[config.LocalContext]
	if !ok {
		return c, fmt.Errorf("%s holds no context %s", b.context, config.LocalContext)
	}
	return c, nil
}

func (b *broker) token(audience string) (string, error) {
	id, err := b.identity()
	if err != nil {
		return "", err
	}
	key, err := auth.LoadSigningKey(id.SigningKey)
	if err != nil {
		return "", err
	}
	return key.Mint(auth.MintRequest{Tenant: "default", Subject: "soak", Permissions: auth.AllPermissions("default"), Audience: audience})
}

func (b *broker) dial(ctx context.Context) (*client.Client, error) {
	id, err := b.identity()
	if err != nil {
		return nil, err
	}
	trust, err := auth.ClientTLS(id.CAFile, "")
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, []string{b.clients}, client.WithTLS(trust), client.WithToken(func(context.Context) (string, error) { return b.token(auth.AudienceBroker) }))
}

// prepare makes what the load works on.
func (b *broker) prepare(ctx context.Context, o Options) error {
	bounds := fmt.Sprintf(`"retention":{"max_size_bytes":%d,"max_age_seconds":null}`, o.RetentionBytes)
	for _, object := range []struct{ path, body string }{
		{"streams", fmt.Sprintf(`{"stream":"events","kind":"Stream","durable":true,"shards":%d,%s}`, shards, bounds)},
		{"streams", fmt.Sprintf(`{"stream":"jobs","kind":"Queue","durable":true,"shards":1,%s}`, bounds)},
		{"caches", `{"cache":"sessions","shards":1}`},
	} {
		token, err := b.token(auth.AudienceAPI)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.http+"/v1/tenants/default/namespaces/default/"+object.path, bytes.NewReader([]byte(object.body)))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		c := &http.Client{Transport: &http.Transport{}}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		c.CloseIdleConnections()
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("create %s: %s: %s", object.body, resp.Status, text)
		}
	}
	return nil
}

// process are the figures of the broker's process.
type process struct{ resident, goroutines, descriptors, cpu float64 }

func scrape(ctx context.Context, c *http.Client, url string) (p process, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return p, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	want := map[string]*float64{"process_resident_memory_bytes": &p.resident, "go_goroutines": &p.goroutines, "process_open_fds": &p.descriptors, "process_cpu_seconds_total": &p.cpu}
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		name, value, _ := strings.Cut(sc.Text(), " ")
		if to := want[name]; to != nil {
			if *to, err = strconv.ParseFloat(value, 64); err != nil {
				return p, fmt.Errorf("metric %s: %w", name, err)
			}
			delete(want, name)
		}
	}
	if len(want) > 0 && sc.Err() == nil {
		return p, fmt.Errorf("%s lacks %d of the process's figures", url, len(want))
	}
	return p, sc.Err()
}
