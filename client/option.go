package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"github.com/felixlog/felix/wire"
)

// Event funcs tell of what a client does by itself. All are optional, must not
// block, and may be called from several goroutines.
type Events struct {
	// OnConnect: a connection was made and authenticated.
	OnConnect func(addr string)
	// OnDisconnect: a connection ended.
	OnDisconnect func(addr string, err error)
	// OnRetry: something is tried again after the wait.
	OnRetry func(op string, err error, wait time.Duration)
}

type clientConfig struct {
	tenant, namespace string
	token             TokenSource
	tls               *tls.Config
	dial              func(ctx context.Context, network, addr string) (net.Conn, error)
	dialTimeout       time.Duration
	answerTimeout     time.Duration
	publishConns      int
	retry             RetryPolicy
	maxFrame          uint32
	events            Events
}

// ClientOption changes how [Dial] connects.
type ClientOption func(*clientConfig)

// WithTenant names the tenant of the token. Default "default".
func WithTenant(tenant string) ClientOption { return func(c *clientConfig) { c.tenant = tenant } }

// WithNamespace names the namespace of streams. Default "default"; see also
// [Client.Namespace].
func WithNamespace(namespace string) ClientOption {
	return func(c *clientConfig) { c.namespace = namespace }
}

// WithToken says where tokens come from.
func WithToken(source TokenSource) ClientOption { return func(c *clientConfig) { c.token = source } }

// WithRootCAs trusts the certificates of pool, and no others.
func WithRootCAs(pool *x509.CertPool) ClientOption {
	return func(c *clientConfig) { c.tls.RootCAs = pool }
}

// WithServerName checks the broker's certificate for this name instead of the
// dialled host.
func WithServerName(name string) ClientOption {
	return func(c *clientConfig) { c.tls.ServerName = name }
}

// WithTLS takes the whole TLS configuration. It is copied; the protocol name and
// TLS 1.3 are set on the copy.
func WithTLS(config *tls.Config) ClientOption {
	return func(c *clientConfig) { c.tls = config.Clone() }
}

// WithDialer replaces how TCP connections are made.
func WithDialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) ClientOption {
	return func(c *clientConfig) { c.dial = dial }
}

// WithDialTimeout bounds connecting to one broker, handshake and auth included.
// Default 10 s.
func WithDialTimeout(d time.Duration) ClientOption {
	return func(c *clientConfig) { c.dialTimeout = d }
}

// WithAnswerTimeout bounds how long an answer may take before the connection is
// taken for broken. Default 30 s.
func WithAnswerTimeout(d time.Duration) ClientOption {
	return func(c *clientConfig) { c.answerTimeout = d }
}

// WithPublishConnections bounds the connections that carry publishes, and those that
// carry requests about keys and groups. Shards and keys are spread over them. Default 4,
// 1 to 64.
func WithPublishConnections(n int) ClientOption { return func(c *clientConfig) { c.publishConns = n } }

// WithRetry replaces the policy for requests that are safe to repeat.
func WithRetry(p RetryPolicy) ClientOption { return func(c *clientConfig) { c.retry = p } }

// WithMaxFrame changes the largest payload of a frame accepted, in bytes.
// Default 16 MiB.
func WithMaxFrame(n uint32) ClientOption { return func(c *clientConfig) { c.maxFrame = n } }

// WithEvents hangs on event funcs.
func WithEvents(e Events) ClientOption { return func(c *clientConfig) { c.events = e } }

func newConfig(opts []ClientOption) (*clientConfig, error) {
	c := &clientConfig{
		tenant: "default", namespace: "default",
		tls:         &tls.Config{},
		dialTimeout: 10 * time.Second, answerTimeout: 30 * time.Second,
		publishConns: 4,
		retry:        DefaultRetry,
		maxFrame:     wire.DefaultMaxFrame,
	}
	for _, o := range opts {
		o(c)
	}
	c.tls.MinVersion = tls.VersionTLS13
	c.tls.NextProtos = []string{"felix/1"}
	// Records that start small after every pause cost far more than they save.
	c.tls.DynamicRecordSizingDisabled = true
	if c.dial == nil {
		d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 5}}
		c.dial = d.DialContext
	}
	if err := wire.ValidName(c.tenant); err != nil {
		return nil, fmt.Errorf("tenant: %w", err)
	}
	if err := wire.ValidName(c.namespace); err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	switch {
	case c.token == nil:
		return nil, fmt.Errorf("no token: use WithToken")
	case c.publishConns < 1 || c.publishConns > 64:
		return nil, fmt.Errorf("publish connections: %d is not 1 to 64", c.publishConns)
	case c.dialTimeout <= 0 || c.answerTimeout <= 0:
		return nil, fmt.Errorf("dial and answer timeouts must be above zero")
	case c.maxFrame < wire.PreAuthMaxFrame:
		return nil, fmt.Errorf("max frame: %d is below %d", c.maxFrame, wire.PreAuthMaxFrame)
	}
	return c, c.retry.validate()
}
