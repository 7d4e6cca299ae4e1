package client

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// script is a broker that does as a test says, for what felixtest does not serve. It
// speaks over real connections.
type script struct {
	t     testing.TB
	addr  string
	conns atomic.Int64 // how many were accepted
	// done is closed when the test ends, for those who hold an answer back.
	done chan struct{}
}

// peer is one authenticated connection. Its serve ends it by returning.
type peer struct {
	s    *script
	conn net.Conn
	r    *wire.Reader
}

// selfSigned is a certificate for the loopback interface.
func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// newScript runs serve for each connection; it ends with the test.
func newScript(t testing.TB, serve func(*peer)) *script {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{selfSigned(t)}, NextProtos: []string{"felix/1"}, MinVersion: tls.VersionTLS13,
	})
	require.NoError(t, err)
	s := &script{t: t, addr: l.Addr().String(), done: make(chan struct{})}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		close(s.done)
		ignore(l.Close())
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			p := &peer{s: s, conn: c, r: wire.NewReader(c, wire.DefaultMaxFrame)}
			wg.Go(func() {
				defer func() { ignore(c.Close()) }()
				if p.next() == nil {
					return
				}
				p.send(&wire.AuthOK{ServerFlags: wire.FlagsKnown, Features: ^wire.Features(0)})
				serve(p)
			})
		}
	})
	return s
}

// dial connects a client that is closed before the broker ends.
func (s *script) dial(opts ...ClientOption) *Client {
	s.t.Helper()
	opts = append([]ClientOption{WithToken(StaticToken("any")), WithTLS(&tls.Config{InsecureSkipVerify: true}), WithRetry(quick)}, opts...)
	c, err := Dial(soon(s.t), []string{s.addr}, opts...)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, c.Close()) })
	return c
}

// next reads a message; nil when the connection has ended.
func (p *peer) next() wire.Message {
	f, err := p.r.Next()
	if err != nil {
		return nil
	}
	m, err := wire.DecodeMessage(f.Payload)
	if err != nil {
		p.s.t.Errorf("script: %v", err)
		return nil
	}
	return m
}

// send writes messages; the end of the connection shows when the next is read.
func (p *peer) send(ms ...wire.Message) {
	var out []byte
	for _, m := range ms {
		out = wire.AppendMessage(out, m)
	}
	_, err := p.conn.Write(out)
	ignore(err)
}

// wait waits for what a test expects to happen soon.
func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "never happened: "+what)
		panic(what)
	}
}
