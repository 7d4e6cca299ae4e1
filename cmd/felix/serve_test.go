package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A hang-up has certificates and keys read again, and ends nothing.
func TestHangUpReadsCertificatesAgain(t *testing.T) {
	s := newShell(t)
	broker := s.serve()
	served := func() *x509.Certificate {
		c, err := tls.Dial("tcp", broker.Clients, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"felix/1"}})
		require.NoError(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0]
	}
	first := served()
	// A certificate that is gone is made anew, which the timer would see to only later.
	require.NoError(t, os.Remove(filepath.Join(s.dir, "felix-data", "tls", "server.crt")))
	require.NoError(t, broker.Signal(syscall.SIGHUP))
	began := time.Now()
	require.Eventually(t, func() bool { return !served().Equal(first) }, patience, time.Millisecond)
	t.Logf("after %s", time.Since(began))
	s.ok("stream", "create", "orders", "--durable")
	s.ok("pub", "orders", "still here")
}
