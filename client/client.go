package client

import (
	"context"
	"fmt"
	"hash/maphash"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/wire"
)

// Client talks to a broker, or to a cluster by any of its brokers. It is safe
// for use by several goroutines.
type Client struct {
	*core
	namespace string
}

// core is what the views of a client share.
type core struct {
	config    *clientConfig
	endpoints endpoints
	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	control   slot
	publish   []slot
	keyed     []slot // for requests about a key or a group
	requests  atomic.Uint64
	seed      maphash.Seed
	additions additions

	mu        sync.Mutex
	closed    bool
	producers map[producerKey]*Producer
	closers   map[closer]struct{}
	// lent are the connections of requests that wait; those of idle are free.
	lent, idle []*slot
}

type streamKey struct{ namespace, stream string }

type producerKey struct {
	streamKey
	delivery Delivery
}

// closer is a producer or subscription, which ends with the client.
type closer interface{ stop() }

// Dial connects to the first of addrs, host and port, that answers and accepts
// the token. ctx bounds that alone.
//
// Errors: ErrUnavailable, ErrUnauthenticated, ErrForbidden; and what is wrong
// with the options.
func Dial(ctx context.Context, addrs []string, opts ...ClientOption) (*Client, error) {
	config, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("client: no address to connect to")
	}
	c := &core{
		config: config, endpoints: endpoints{addrs: append([]string(nil), addrs...)},
		publish: make([]slot, config.publishConns), seed: maphash.MakeSeed(),
		producers: make(map[producerKey]*Producer), closers: make(map[closer]struct{}),
	}
	// A connection more than there are processors would only make what is written at
	// once smaller.
	c.keyed = make([]slot, min(config.publishConns, runtime.GOMAXPROCS(0)))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.control.core = c
	for i := range c.publish {
		c.publish[i].core = c
	}
	for i := range c.keyed {
		c.keyed[i].core = c
	}
	if _, err := c.control.get(ctx); err != nil {
		c.close()
		return nil, err
	}
	return &Client{core: c, namespace: config.namespace}, nil
}

// Namespace returns a view of the client whose streams are in another
// namespace. The views share everything else; closing one closes all.
func (c *Client) Namespace(namespace string) *Client {
	return &Client{core: c.core, namespace: namespace}
}

// Close ends the client, its producers and its subscriptions. What was sent and
// not answered ends with ErrOutcomeUnknown, everything else with ErrClosed. Close
// a producer first to have its records answered.
func (c *Client) Close() error {
	c.close()
	return nil
}

func (c *core) close() {
	c.mu.Lock()
	c.closed = true
	closers := make([]closer, 0, len(c.closers))
	for s := range c.closers {
		closers = append(closers, s)
	}
	c.mu.Unlock()
	c.cancel()
	for _, s := range closers {
		s.stop()
	}
	c.control.close()
	for i := range c.publish {
		c.publish[i].close()
	}
	for i := range c.keyed {
		c.keyed[i].close()
	}
	c.mu.Lock()
	lent := c.lent
	c.mu.Unlock()
	for _, s := range lent {
		s.close()
	}
	c.wg.Wait()
}

// adopt ties s to the life of the client.
func (c *core) adopt(s closer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.closers[s] = struct{}{}
	return nil
}

func (c *core) disown(s closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.closers, s)
}

// producersOf are the producers of a stream.
func (c *core) producersOf(k streamKey) (of []*Producer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.closers {
		if p, ok := s.(*Producer); ok && p.key.streamKey == k {
			of = append(of, p)
		}
	}
	return of
}

// slotOf spreads shards over the publish connections; one shard always takes
// the same, so that its batches stay in order.
func (c *core) slotOf(k streamKey, shard int) *slot {
	h := maphash.String(c.seed, k.namespace+"/"+k.stream+"/"+strconv.Itoa(shard))
	return &c.publish[h%uint64(len(c.publish))]
}

// keySlot spreads keys over connections; one key always takes the same, so that requests
// about it are handled in order.
func (c *core) keySlot(name, key string) *slot {
	h := maphash.String(c.seed, name)*0x9e3779b97f4a7c15 ^ maphash.String(c.seed, key)
	return &c.keyed[h%uint64(len(c.keyed))]
}

func (c *core) requestID() uint64 { return c.requests.Add(1) }

func (c *core) retrying(op string, err error, b *backoff, repeatable bool) bool {
	d, ok := b.again(err, repeatable)
	if !ok {
		return false
	}
	if f := c.config.events.OnRetry; f != nil {
		f(op, err, d)
	}
	return pause(c.ctx, d) == nil
}

// width is how many shards a stream has and how keys are spread over them.
type width struct {
	shards  int
	routing wire.Routing
}
