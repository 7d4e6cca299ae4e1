package node

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
)

// served are the certificates that handshakes with the node get: clients' on QUIC and TCP,
// and the API's, nil without HTTPS.
func (r *rig) served() map[string]*x509.Certificate {
	r.t.Helper()
	any := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{auth.ALPN}} // what is served is looked at, not whether it is trusted
	served := map[string]*x509.Certificate{}
	q, err := quic.DialAddr(r.t.Context(), r.node.ClientAddr(), any, nil)
	require.NoError(r.t, err)
	served["quic"] = q.ConnectionState().TLS.PeerCertificates[0]
	require.NoError(r.t, q.CloseWithError(0, ""))
	for name, addr := range map[string]string{"tcp": r.node.ClientAddr(), "http": r.node.HTTPAddr()} {
		if name == "http" && r.options.Config.HTTP.TLSCert == "" {
			continue
		}
		c := &tls.Config{InsecureSkipVerify: true}
		if name == "tcp" {
			c = any
		}
		conn, err := tls.Dial("tcp", addr, c)
		require.NoError(r.t, err)
		served[name] = conn.ConnectionState().PeerCertificates[0]
		require.NoError(r.t, conn.Close())
	}
	return served
}

// pair makes a certificate of an authority of its own.
func pair(t *testing.T) (cert, key []byte) {
	t.Helper()
	paths, _, err := auth.EnsureCertificates(t.TempDir(), auth.CertificateOptions{})
	require.NoError(t, err)
	cert, err = os.ReadFile(paths.Cert)
	require.NoError(t, err)
	key, err = os.ReadFile(paths.Key)
	require.NoError(t, err)
	return cert, key
}

// Certificates replaced under a broker that runs are what the next handshake gets, on both
// transports and the API; clients that are connected stay, and half a pair changes nothing.
func TestReplacedCertificatesAreServed(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	put := func(name string, content []byte) { require.NoError(t, os.WriteFile(file(name), content, 0o600)) }
	replace := func(which string) {
		cert, key := pair(t)
		put(which+".crt", cert)
		put(which+".key", key)
	}
	replace("clients")
	replace("api")
	looks := make(chan time.Time)
	r := start(t, func(o *Options) {
		o.looks = looks
		c := &o.Config
		c.TLS.Cert, c.TLS.Key = file("clients.crt"), file("clients.key")
		c.HTTP.TLSCert, c.HTTP.TLSKey = file("api.crt"), file("api.key")
	})
	look := func() {
		looks <- time.Time{}
		looks <- time.Time{} // taken when the first is done
	}
	first := r.served()
	require.Len(t, first, 3)
	held, err := tls.Dial("tcp", r.node.ClientAddr(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{auth.ALPN}})
	require.NoError(t, err)
	defer held.Close()
	look()
	require.Equal(t, first, r.served(), "nothing was replaced")

	replace("clients")
	replace("api")
	require.Equal(t, first, r.served(), "not looked at yet")
	look()
	second := r.served()
	for name, cert := range second {
		require.False(t, cert.Equal(first[name]), name)
	}
	require.True(t, second["quic"].Equal(second["tcp"]))
	require.False(t, second["quic"].Equal(second["http"]))
	_, err = held.Write([]byte("x"))
	require.NoError(t, err, "who is connected stays")

	cert, _ := pair(t)
	put("clients.crt", cert)
	look()
	require.Equal(t, second, r.served(), "half a pair")
	require.Contains(t, r.log.String(), "the one in use stays")

	replace("clients")
	r.node.Reload()
	require.Eventually(t, func() bool { return !r.served()["quic"].Equal(second["quic"]) }, patience, time.Millisecond)
}

// The private authority's certificate is renewed by a broker that runs, 30 days before its
// end, and clients that trust the authority go on.
func TestGeneratedCertificateIsRenewedWhileItRuns(t *testing.T) {
	looks := make(chan time.Time)
	var ahead atomic.Int64
	r := start(t, func(o *Options) {
		o.looks = looks
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	look := func() {
		looks <- time.Time{}
		looks <- time.Time{}
	}
	r.awaitReady()
	first := r.served()
	authority, err := os.ReadFile(r.node.creds.ca)
	require.NoError(t, err)

	const day = 24 * time.Hour
	ahead.Store(int64(first["tcp"].NotAfter.Sub(time.Now()) - 31*day))
	look()
	require.Equal(t, first, r.served(), "31 days are left")
	ahead.Add(int64(2 * day))
	look()
	second := r.served()
	for name, cert := range second {
		require.False(t, cert.Equal(first[name]), name)
		require.Greater(t, cert.NotAfter.Sub(first[name].NotAfter), 300*day, name)
	}
	look()
	require.Equal(t, second, r.served(), "once")

	now, err := os.ReadFile(r.node.creds.ca)
	require.NoError(t, err)
	require.True(t, bytes.Equal(authority, now), "of the same authority")
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(authority))
	for name, cert := range second {
		_, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost", CurrentTime: r.options.Now()})
		require.NoError(t, err, name)
	}
	require.NotContains(t, r.log.String(), "not renewed")

	// A certificate of one's own is its owner's to renew.
	cert, key := pair(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "crt"), cert, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "key"), key, 0o600))
	own := start(t, func(o *Options) {
		o.looks, o.Now = looks, r.options.Now
		o.Config.TLS = config.TLS{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	})
	r.stop()
	before := own.served()
	ahead.Add(int64(1000 * day))
	look()
	require.Equal(t, before, own.served())
}

// A certificate that has ended is not taken in the place of one that serves; at a start,
// where there is no other, it is, and the log says so.
func TestEndedCertificatesAreNotTaken(t *testing.T) {
	const year = 365 * 24 * time.Hour
	made := func(ago time.Duration) (cert, key []byte) {
		paths, _, err := auth.EnsureCertificates(t.TempDir(), auth.CertificateOptions{Now: func() time.Time { return time.Now().Add(-ago) }})
		require.NoError(t, err)
		cert, err = os.ReadFile(paths.Cert)
		require.NoError(t, err)
		key, err = os.ReadFile(paths.Key)
		require.NoError(t, err)
		return cert, key
	}
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	replace := func(which string, ago time.Duration) {
		cert, key := made(ago)
		require.NoError(t, os.WriteFile(file(which+".crt"), cert, 0o600))
		require.NoError(t, os.WriteFile(file(which+".key"), key, 0o600))
	}
	looks := make(chan time.Time)
	both := func(o *Options) {
		o.looks = looks
		c := &o.Config
		c.TLS.Cert, c.TLS.Key = file("clients.crt"), file("clients.key")
		c.HTTP.TLSCert, c.HTTP.TLSKey = file("api.crt"), file("api.key")
	}
	replace("clients", 0)
	replace("api", 0)
	r := start(t, both)
	look := func() {
		looks <- time.Time{}
		looks <- time.Time{} // taken when the first is done
	}
	first := r.served()
	require.NotContains(t, r.log.String(), "has ended")
	replace("clients", 2*year)
	replace("api", 2*year)
	look()
	require.Equal(t, first, r.served())
	for _, name := range []string{"clients.crt", "api.crt"} {
		require.Contains(t, r.log.String(), `"level":"ERROR","msg":"certificate not read again; the one in use stays","error":"certificate `+file(name)+" ended at ")
	}
	replace("clients", 0)
	look()
	second := r.served()
	require.False(t, second["tcp"].Equal(first["tcp"]))
	require.True(t, second["http"].Equal(first["http"]))
	r.stop()

	again := start(t, both)
	require.True(t, time.Now().After(again.served()["http"].NotAfter), "it is served")
	const ended = `"level":"WARN","msg":"certificate has ended: clients that check it refuse this broker until it is replaced","file":"`
	require.Contains(t, again.log.String(), ended+file("api.crt"))
	require.NotContains(t, again.log.String(), ended+file("clients.crt"))
}

// A broker that runs never makes another authority in the place of one that is missing: all
// who trust the first would be cut off. A start does, and serves a certificate of it.
func TestAMissingAuthorityIsNotReplacedByABrokerThatRuns(t *testing.T) {
	looks := make(chan time.Time)
	var ahead atomic.Int64
	r := start(t, func(o *Options) {
		o.looks = looks
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	look := func() {
		looks <- time.Time{}
		looks <- time.Time{} // taken when the first is done
	}
	r.awaitReady()
	dir := filepath.Dir(r.node.creds.ca)
	first := r.served()
	authority, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	const notRenewed = "not renewed; the one in use stays"
	for i, name := range []string{"ca.crt", "ca.key"} {
		path := filepath.Join(dir, name)
		was, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		look()
		look()
		require.NoFileExists(t, path)
		require.Equal(t, first, r.served(), name)
		said := r.log.String()
		require.Equal(t, i+1, strings.Count(said, notRenewed), "once each time: %s", said)
		require.Contains(t, said, `"level":"WARN","msg":"certificate `+notRenewed)
		require.Contains(t, said, path+" is not there")
		require.NoError(t, os.WriteFile(path, was, 0o600))
		look()
	}
	away := filepath.Join(t.TempDir(), "tls")
	require.NoError(t, os.Rename(dir, away))
	look()
	require.NoDirExists(t, dir, "nor is its directory made")
	require.NoError(t, os.Rename(away, dir))

	// Put back, it renews again.
	ahead.Store(int64(first["tcp"].NotAfter.Sub(time.Now()) - 29*24*time.Hour))
	look()
	require.False(t, r.served()["tcp"].Equal(first["tcp"]))

	// At the authority's end: both removed, and started again.
	ahead.Store(int64(11 * 365 * 24 * time.Hour))
	look()
	require.Contains(t, r.log.String(), `"level":"ERROR","msg":"certificate `+notRenewed)
	for _, name := range []string{"ca.crt", "ca.key"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	r.stop()
	again := start(t, func(o *Options) {
		o.Config.Data, o.Now = r.options.Config.Data, r.options.Now
	})
	again.awaitReady()
	now, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	require.False(t, bytes.Equal(authority, now))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(now))
	_, err = again.served()["tcp"].Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost", CurrentTime: r.options.Now()})
	require.NoError(t, err)
}
