package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ALPN is the protocol id of the client listener.
const ALPN = "felix/1"

// ErrNoALPN refuses a handshake of a client that names no protocol, where the
// listener requires one.
var ErrNoALPN = errors.New("the client names no application protocol, and this listener requires " + ALPN)

// Certificate is a certificate and key read from files, swapped as a whole when they
// change. It is safe for concurrent use.
type Certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[loadedCertificate]
}

type loadedCertificate struct {
	pair            tls.Certificate
	certPEM, keyPEM []byte
}

// LoadCertificate reads a PEM pair. The chain may follow the certificate in its file. One
// that has ended is served all the same: there is no other, and some clients do not look.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	if _, err := c.Reload(time.Time{}); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload reads the files again and reports whether they differ. On an error, half a
// replaced pair and a certificate that has ended by now included, the pair in use stays.
func (c *Certificate) Reload(now time.Time) (changed bool, err error) {
	certPEM, _, err := readFile(c.certFile)
	if err != nil {
		return false, err
	}
	keyPEM, _, err := readFile(c.keyFile)
	if err != nil {
		return false, err
	}
	if old := c.current.Load(); old != nil && bytes.Equal(old.certPEM, certPEM) && bytes.Equal(old.keyPEM, keyPEM) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return false, fmt.Errorf("certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	if end := pair.Leaf.NotAfter; now.After(end) {
		return false, fmt.Errorf("certificate %s ended at %s: put one in its place that has not", c.certFile, end.UTC().Format(time.RFC3339))
	}
	c.current.Store(&loadedCertificate{pair: pair, certPEM: certPEM, keyPEM: keyPEM})
	return true, nil
}

// File is where the certificate is read from.
func (c *Certificate) File() string { return c.certFile }

// Leaf is the certificate being served.
func (c *Certificate) Leaf() *x509.Certificate { return c.current.Load().pair.Leaf }

// Get is a tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &c.current.Load().pair, nil
}

// ServerTLS configures the client listener (docs/protocol): TLS 1.3 only; a
// client that offers felix/1 gets it; one that offers only other protocols is
// refused; one that offers none is accepted unless requireALPN.
func ServerTLS(c *Certificate, requireALPN bool) *tls.Config {
	plain := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: c.Get}
	withALPN := plain.Clone()
	withALPN.NextProtos = []string{ALPN}

	// With NextProtos set, a QUIC server refuses whoever offers nothing, and with it
	// unset, nothing is selected for whoever offers felix/1. So the choice is made per
	// client. Both configurations live as long as the listener, and with them the keys
	// of their session tickets.
	listener := withALPN.Clone()
	listener.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.SupportedProtos) > 0 {
			return withALPN, nil
		}
		if requireALPN {
			return nil, ErrNoALPN
		}
		return plain, nil
	}
	return listener
}

// ClientTLS configures a client that trusts the authorities in a PEM file and expects
// the server to be serverName.
func ClientTLS(caFile, serverName string) (*tls.Config, error) {
	data, _, err := readFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("ca file %s: holds no certificate", caFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: serverName,
		NextProtos: []string{ALPN}}, nil
}
