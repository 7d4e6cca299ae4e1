package felixtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/felixlog/felix/wire"
)

// Broker is a running broker. Its methods may be called from any goroutine.
type Broker struct {
	cert  tls.Certificate
	roots *x509.CertPool
	addr  string

	mu sync.Mutex
	// grown is signalled when a log grows and when a connection ends.
	grown     *sync.Cond
	listener  net.Listener
	conns     map[*conn]struct{}
	streams   map[string]*stream
	token     string
	intercept func(Request) Action
	nextID    uint64
	accepted  int
	wg        sync.WaitGroup
}

type stream struct {
	routing wire.Routing
	shards  []*shard
	// maxRecord bounds a record, 0 for none.
	maxRecord int
}

type shard struct {
	records   []stored
	head      uint64
	producers map[uint64]*producer
}

type stored struct {
	payload []byte
	at      time.Time
}

type producer struct {
	next uint64
	// first are the offsets of the remembered batches, by sequence.
	first map[uint64]uint64
}

// Request is what an interceptor decides about: a publish, or any other request
// by the type of its message.
type Request struct {
	// Type is "publish" for every form of publish.
	Type   string
	Stream string
	Shard  int
	// ProducerID and Sequence are those of an idempotent publish.
	ProducerID, Sequence uint64
	Payloads             [][]byte
}

// Action is what an interceptor wants.
type Action struct {
	// Refuse answers with a failure and does nothing else.
	Refuse *wire.Failure
	// CutBefore ends the connection without doing anything.
	CutBefore bool
	// CutAfter does what was asked and ends the connection without an answer.
	CutAfter bool
	// Hold waits for the channel to be closed before anything is done.
	Hold <-chan struct{}
}

// Start runs a broker on a free port of the loopback interface.
func Start() (*Broker, error) {
	b := &Broker{conns: make(map[*conn]struct{}), streams: make(map[string]*stream), token: "felixtest"}
	b.grown = sync.NewCond(&b.mu)
	if err := b.certify(); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("felixtest: %w", err)
	}
	b.addr = l.Addr().String()
	b.serve(l)
	return b, nil
}

// certify makes a self-signed certificate for the loopback interface.
func (b *Broker) certify() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("felixtest: key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "felixtest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("felixtest: certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("felixtest: certificate: %w", err)
	}
	b.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	b.roots = x509.NewCertPool()
	b.roots.AddCert(leaf)
	return nil
}

func (b *Broker) serve(l net.Listener) {
	b.mu.Lock()
	b.listener = l
	b.mu.Unlock()
	config := &tls.Config{Certificates: []tls.Certificate{b.cert}, MinVersion: tls.VersionTLS13, NextProtos: []string{"felix/1"}, DynamicRecordSizingDisabled: true}
	b.wg.Go(func() {
		for {
			socket, err := l.Accept()
			if err != nil {
				return
			}
			c := &conn{b: b, socket: socket, tls: tls.Server(socket, config)}
			b.mu.Lock()
			if b.listener != l {
				b.mu.Unlock()
				ignore(socket.Close())
				continue
			}
			b.conns[c] = struct{}{}
			b.accepted++
			b.wg.Go(c.serve)
			b.mu.Unlock()
		}
	})
}

func ignore(error) {}

// Addr is host and port.
func (b *Broker) Addr() string { return b.addr }

// RootCAs trusts the broker's certificate.
func (b *Broker) RootCAs() *x509.CertPool { return b.roots }

// Token is the token that is accepted.
func (b *Broker) Token() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.token
}

// SetToken changes the token that is accepted by new connections.
func (b *Broker) SetToken(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token = token
}

// CreateStream makes a durable stream.
func (b *Broker) CreateStream(name string, shards int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &stream{}
	for range shards {
		s.shards = append(s.shards, &shard{producers: make(map[uint64]*producer)})
	}
	b.streams[name] = s
}

// LimitRecords refuses records of a stream above a size with limit_exceeded.
func (b *Broker) LimitRecords(name string, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams[name].maxRecord = bytes
}

// Intercept lets f decide about each request from now on; nil ends that. f may
// be called from several goroutines.
func (b *Broker) Intercept(f func(Request) Action) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.intercept = f
}

// Records returns the payloads of a shard that are retained.
func (b *Broker) Records(name string, shard int) [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	var payloads [][]byte
	for _, r := range b.streams[name].shards[shard].records {
		payloads = append(payloads, r.payload)
	}
	return payloads
}

// Trim removes the records of a shard below an offset, as retention does.
func (b *Broker) Trim(name string, shard int, to uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name].shards[shard]
	for s.head < to && len(s.records) > 0 {
		s.records = s.records[1:]
		s.head++
	}
}

// Lose removes the records of a shard from an offset on, and what is known of
// its producers beyond it, as a power cut may do to what was not flushed.
func (b *Broker) Lose(name string, shard int, from uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name].shards[shard]
	s.records = s.records[:from-s.head]
	for _, p := range s.producers {
		for sequence, first := range p.first {
			if first >= from {
				delete(p.first, sequence)
				p.next = min(p.next, sequence)
			}
		}
	}
}

// ForgetProducers makes the broker forget every idempotent producer.
func (b *Broker) ForgetProducers() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.streams {
		for _, shard := range s.shards {
			clear(shard.producers)
		}
	}
}

// Connections returns how many connections are open, and how many there were.
func (b *Broker) Connections() (open, ever int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.conns), b.accepted
}

// Disconnect ends every connection; new ones are accepted.
func (b *Broker) Disconnect() {
	b.mu.Lock()
	for c := range b.conns {
		ignore(c.socket.Close())
		c.closed = true
	}
	b.grown.Broadcast()
	b.mu.Unlock()
}

// Stop ends every connection and accepts no more, until Restart.
func (b *Broker) Stop() {
	b.mu.Lock()
	l := b.listener
	b.listener = nil
	b.mu.Unlock()
	if l != nil {
		ignore(l.Close())
	}
	b.Disconnect()
	b.wg.Wait()
}

// portPatience is how long Restart waits for its port.
const portPatience = 30 * time.Second

// Restart accepts connections again on the same port, with the same records. While the
// broker was stopped the system may have given the port to another program: it is waited
// for, half a minute.
func (b *Broker) Restart() error {
	l, err := net.Listen("tcp", b.addr)
	for until := time.Now().Add(portPatience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(until); {
		<-time.After(time.Millisecond)
		l, err = net.Listen("tcp", b.addr)
	}
	if err != nil {
		return fmt.Errorf("felixtest: %w", err)
	}
	b.serve(l)
	return nil
}

// Close ends the broker and waits for its goroutines.
func (b *Broker) Close() { b.Stop() }
