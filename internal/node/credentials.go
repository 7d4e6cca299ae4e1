package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
)

// defaultTenant and defaultNamespace exist from the first start.
const (
	defaultTenant    = "default"
	defaultNamespace = "default"
)

// credentials are what a broker is believed by.
type credentials struct {
	certificate *auth.Certificate
	keys        *auth.Keys
	ca          string // the private authority's certificate, "" with a certificate of one's own
	tlsDir      string // of the authority, "" without one
	ownKeys     bool   // auth.keys: the signing keys are kept elsewhere
	resetKey    [32]byte
	missing     bool // the authority was when renew last looked
}

// openCredentials loads or makes certificate and keys.
func openCredentials(d *DataDir, o *config.Options, now func() time.Time) (*credentials, error) {
	c := &credentials{}
	cert, key := o.TLS.Cert, o.TLS.Key
	if cert == "" {
		c.tlsDir = d.Path(tlsDir)
		paths, _, err := auth.EnsureCertificates(c.tlsDir, auth.CertificateOptions{Now: now})
		if err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
		cert, key, c.ca = paths.Cert, paths.Key, paths.CA
	}
	var err error
	if c.certificate, err = auth.LoadCertificate(cert, key); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	dir := o.Auth.Keys
	if dir == "" {
		dir = d.Path(keysDir)
	} else if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("auth.keys: %w", err)
	}
	if c.keys, err = auth.OpenKeys(dir); err != nil {
		return nil, fmt.Errorf("signing keys: %w", err)
	}
	if o.Auth.Keys == "" {
		if _, err := c.keys.Ensure(defaultTenant); err != nil {
			return nil, fmt.Errorf("signing keys: %w", err)
		}
	}
	c.ownKeys = o.Auth.Keys != ""
	c.resetKey, err = ensureResetKey(d)
	return c, err
}

// renew makes the certificate of the private authority anew when it is about to end. The
// authority itself is what clients trust: a broker that runs never replaces it.
func (c *credentials) renew(now func() time.Time, log *slog.Logger) {
	if c.tlsDir == "" {
		return
	}
	_, _, err := auth.EnsureCertificates(c.tlsDir, auth.CertificateOptions{Now: now, KeepAuthority: true})
	const notRenewed = "certificate not renewed; the one in use stays"
	attrs := []any{"not_after", c.certificate.Leaf().NotAfter, "error", err}
	missing := errors.Is(err, auth.ErrNoAuthority)
	switch {
	case missing && !c.missing: // said once: it may be kept elsewhere on purpose
		log.Warn(notRenewed, attrs...)
	case err != nil && !missing:
		log.Error(notRenewed, attrs...)
	}
	c.missing = missing
}

// ensureResetKey keeps the key of QUIC's stateless resets from one start to the
// next, so that clients notice a killed broker as soon as it is back.
func ensureResetKey(d *DataDir) (key [32]byte, err error) {
	raw, err := d.readAll(resetKey)
	if err == nil && len(raw) == len(key) {
		return [32]byte(raw), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return key, &DirError{Dir: d.Root, Path: resetKey, Err: cause(err), Hint: hint(err)}
	}
	// crypto/rand.Read never returns an error.
	rand.Read(key[:])
	return key, writeFile(d.fs, d.Root, resetKey, key[:])
}
