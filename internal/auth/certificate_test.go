package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEnsureCertificates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	now := time.Now()
	clock := func() time.Time { return now }
	paths, changed, err := EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.NoError(t, err)
	require.True(t, changed)

	cert, err := LoadCertificate(paths.Cert, paths.Key)
	require.NoError(t, err)
	leaf := cert.Leaf()
	require.Equal(t, 3, leaf.Version)
	require.True(t, leaf.BasicConstraintsValid)
	require.False(t, leaf.IsCA, "a trust anchor that is served must not be an authority")
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, leaf.ExtKeyUsage)
	require.Equal(t, elliptic.P256(), leaf.PublicKey.(*ecdsa.PublicKey).Curve)

	caPEM, err := os.ReadFile(paths.CA)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(caPEM))
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host})
		require.NoError(t, err, host)
	}
	for _, key := range []string{"ca.key", "server.key"} {
		info, err := os.Stat(filepath.Join(dir, key))
		require.NoError(t, err)
		require.EqualValues(t, 0o600, info.Mode().Perm(), key)
	}

	read := func(path string) []byte {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return data
	}
	before := read(paths.Cert)
	_, changed, err = EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, before, read(paths.Cert))

	// Another host: a new leaf of the same authority.
	_, changed, err = EnsureCertificates(dir, CertificateOptions{Now: clock, Hosts: []string{"localhost", "broker-1.example"}})
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, caPEM, read(paths.CA))
	changed, err = cert.Reload(clock())
	require.NoError(t, err)
	require.True(t, changed)
	require.NoError(t, cert.Leaf().VerifyHostname("broker-1.example"))

	// Close to its end: renewed.
	now = now.Add(certificateLifetime - renewBefore + time.Hour)
	_, changed, err = EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.NoError(t, err)
	require.True(t, changed)

	// As long as the authority at the most: not again and again towards its end.
	now = now.Add(authorityLifetime - certificateLifetime)
	_, changed, err = EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.NoError(t, err)
	require.True(t, changed)
	_, changed, err = EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.NoError(t, err)
	require.False(t, changed)

	// The authority's own end is an operator's decision.
	now = now.Add(authorityLifetime)
	_, _, err = EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.ErrorContains(t, err, "give clients the new one")

	// A lost key is not silently replaced.
	require.NoError(t, os.Remove(filepath.Join(dir, "ca.key")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.key"), read(paths.Key), 0o600))
	now = time.Now()
	_, _, err = EnsureCertificates(dir, CertificateOptions{Now: clock})
	require.ErrorContains(t, err, "do not belong together")
}

// Half an authority is one that somebody trusts: another is made only once both files are
// removed. What a start left that ended while it made one is no such half.
func TestHalfAnAuthorityIsRefused(t *testing.T) {
	for missing, left := range map[string]string{"ca.crt": "ca.key", "ca.key": "ca.crt"} {
		dir := filepath.Join(t.TempDir(), "tls")
		_, _, err := EnsureCertificates(dir, CertificateOptions{})
		require.NoError(t, err)
		require.NoError(t, os.Remove(filepath.Join(dir, missing)))
		before := tree(t, dir)
		for _, o := range []CertificateOptions{{}, {KeepAuthority: true}} {
			_, changed, err := EnsureCertificates(dir, o)
			require.ErrorIs(t, err, ErrNoAuthority)
			require.ErrorContains(t, err, filepath.Join(dir, missing)+" is not there")
			require.ErrorContains(t, err, "remove "+filepath.Join(dir, left)+" too")
			require.False(t, changed)
			require.Equal(t, before, tree(t, dir), "nothing is written")
		}
		// The explicit wish.
		require.NoError(t, os.Remove(filepath.Join(dir, left)))
		_, changed, err := EnsureCertificates(dir, CertificateOptions{})
		require.NoError(t, err)
		require.True(t, changed)
	}
}

// A start may end at any moment while it makes an authority, the first one or another: the
// next start makes it.
func TestAnAuthorityWhoseMakingWasCutShortIsMade(t *testing.T) {
	for _, first := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), "tls")
		caKey := filepath.Join(dir, "ca.key")
		paths, _, err := EnsureCertificates(dir, CertificateOptions{})
		require.NoError(t, err)
		for _, name := range []string{paths.CA, caKey} {
			require.NoError(t, os.Remove(name))
		}
		if first {
			require.NoError(t, os.Remove(paths.Cert))
			require.NoError(t, os.Remove(paths.Key))
		}
		// It ends where the certificate would be written, behind the key.
		cut := paths
		cut.CA = filepath.Join(dir, "none", "ca.crt")
		_, _, err = makeAuthority(cut, caKey, time.Now())
		require.Error(t, err)
		require.FileExists(t, caKey)
		for range 2 {
			_, _, err = EnsureCertificates(dir, CertificateOptions{})
			require.NoError(t, err)
			_, err = LoadCertificate(paths.Cert, paths.Key)
			require.NoError(t, err)
			// And behind the authority, where there is no certificate of it yet.
			require.NoError(t, os.Remove(paths.Cert))
		}
	}
}

// tree are the files of a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	files := map[string]string{}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(raw)
	}
	return files
}

func TestReloadKeepsThePairInUse(t *testing.T) {
	dir := t.TempDir()
	paths, _, err := EnsureCertificates(dir, CertificateOptions{})
	require.NoError(t, err)
	cert, err := LoadCertificate(paths.Cert, paths.Key)
	require.NoError(t, err)
	leaf := cert.Leaf()
	changed, err := cert.Reload(time.Now())
	require.NoError(t, err)
	require.False(t, changed)

	other, _, err := EnsureCertificates(t.TempDir(), CertificateOptions{})
	require.NoError(t, err)
	half, err := os.ReadFile(other.Cert)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(paths.Cert, half, 0o600))
	_, err = cert.Reload(time.Now())
	require.Error(t, err, "half a replaced pair")
	require.True(t, leaf.Equal(cert.Leaf()))
	require.NoError(t, os.Remove(paths.Cert))
	_, err = cert.Reload(time.Now())
	require.Error(t, err)
	require.True(t, leaf.Equal(cert.Leaf()))
}

func TestALPN(t *testing.T) {
	paths, _, err := EnsureCertificates(t.TempDir(), CertificateOptions{})
	require.NoError(t, err)
	cert, err := LoadCertificate(paths.Cert, paths.Key)
	require.NoError(t, err)
	base, err := ClientTLS(paths.CA, "localhost")
	require.NoError(t, err)

	for _, tc := range []struct {
		name     string
		offer    []string
		require  bool
		max      uint16
		selected string
		refused  bool
	}{
		{name: "felix/1", offer: []string{ALPN}, selected: ALPN},
		{name: "felix/1 among others", offer: []string{"h2", ALPN}, selected: ALPN},
		{name: "none"},
		{name: "others only", offer: []string{"felix-internal/1"}, refused: true},
		{name: "none, required", require: true, refused: true},
		{name: "felix/1, required", offer: []string{ALPN}, require: true, selected: ALPN},
		{name: "TLS 1.2", offer: []string{ALPN}, max: tls.VersionTLS12, refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := base.Clone()
			client.NextProtos = tc.offer
			if tc.max != 0 {
				client.MinVersion, client.MaxVersion = tc.max, tc.max
			}
			ours, theirs := net.Pipe()
			server := tls.Server(ours, ServerTLS(cert, tc.require))
			done := make(chan error, 1)
			go func() {
				err := server.Handshake()
				if err != nil {
					ours.Close()
				}
				done <- err
			}()
			conn := tls.Client(theirs, client)
			err := conn.Handshake()
			if err == nil {
				// In TLS 1.3 a client learns of a refusal with its first read.
				go func() {
					_, werr := server.Write([]byte("x"))
					done <- werr
				}()
				_, err = conn.Read(make([]byte, 1))
			}
			if tc.refused {
				require.Error(t, err)
				require.NoError(t, theirs.Close())
				require.Error(t, <-done)
				return
			}
			require.NoError(t, err)
			require.NoError(t, <-done)
			require.NoError(t, <-done)
			require.Equal(t, tc.selected, conn.ConnectionState().NegotiatedProtocol)
			require.NoError(t, theirs.Close())
			require.NoError(t, ours.Close())
		})
	}
}

func TestKeyMaterialIsNeverInAnError(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key.pem")
	secret := bytes.Repeat([]byte("s3cret"), 20)
	require.NoError(t, os.WriteFile(path, secret, 0o600))
	_, err := LoadSigningKey(path)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
}
