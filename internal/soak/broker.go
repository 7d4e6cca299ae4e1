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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/child"
	"github.com/felixlog/felix/internal/config"
)

// broker is the process under load.
type broker struct {
	*child.Process
	context string // its context file

	mu   sync.Mutex
	seen []event
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
	b := &broker{context: filepath.Join(o.Dir, "context.yaml")}
	cmd := o.Broker("serve", "--data", filepath.Join(o.Dir, "data"), "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
		"--context-file", b.context, "--log-format", "json", "--log-level", "debug", "--storage-min-free", "0",
		"--storage-segment-bytes", strconv.FormatInt(o.SegmentBytes, 10), "--storage-retention-check-interval", "1s")
	var err error
	b.Process, err = child.Start(ctx, cmd, b.heed)
	return b, err
}

// heed notes what the broker says it did by itself.
func (b *broker) heed(text []byte) {
	var line struct {
		Time       time.Time
		Msg, Shard string
	}
	if json.Unmarshal(text, &line) != nil {
		return
	}
	kind := ""
	switch line.Msg {
	case "segment rolled":
		kind = roll
	case "retention removed segments":
		// Segments of a stream go by retention; those of other logs when compaction has
		// copied what is needed of them.
		kind = trim
		if strings.Contains(line.Shard, " ") {
			kind = compaction
		}
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, event{line.Time, kind})
}

func (b *broker) events() []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
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

// subject is who the load is.
const subject = "soak"

func (b *broker) token(subject, audience string) (string, error) {
	id, err := b.identity()
	if err != nil {
		return "", err
	}
	key, err := auth.LoadSigningKey(id.SigningKey)
	if err != nil {
		return "", err
	}
	return key.Mint(auth.MintRequest{Tenant: "default", Subject: subject, Permissions: auth.AllPermissions("default"), Audience: audience})
}

func (b *broker) dial(ctx context.Context, subject string) (*client.Client, error) {
	id, err := b.identity()
	if err != nil {
		return nil, err
	}
	trust, err := auth.ClientTLS(id.CAFile, "")
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, []string{b.Clients}, client.WithTLS(trust), client.WithToken(func(context.Context) (string, error) { return b.token(subject, auth.AudienceBroker) }))
}

// prepare makes what the load works on.
func (b *broker) prepare(ctx context.Context, o Options) error {
	bounds := fmt.Sprintf(`"retention":{"max_size_bytes":%d,"max_age_seconds":null}`, o.RetentionBytes)
	for _, object := range []struct{ path, body string }{
		{"streams", fmt.Sprintf(`{"stream":"events","kind":"Stream","durable":true,"shards":%d,%s}`, shards, bounds)},
		{"streams", fmt.Sprintf(`{"stream":"jobs","kind":"Queue","durable":true,"shards":1,%s}`, bounds)},
		{"caches", `{"cache":"sessions","shards":1}`},
	} {
		token, err := b.token(subject, auth.AudienceAPI)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.HTTP+"/v1/tenants/default/namespaces/default/"+object.path, bytes.NewReader([]byte(object.body)))
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
