package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Lifetimes of what a first start makes.
const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 397 * 24 * time.Hour
	renewBefore         = 30 * 24 * time.Hour
	// backdate lets a client whose clock is a little behind connect at once.
	backdate = time.Hour
)

// CertificateOptions say what [EnsureCertificates] makes.
type CertificateOptions struct {
	// Hosts are the names and addresses the server certificate is for;
	// localhost, 127.0.0.1 and ::1 when empty.
	Hosts []string
	// Now is the wall clock when nil.
	Now func() time.Time
	// KeepAuthority makes the server certificate alone: an authority that is missing is
	// ErrNoAuthority, and nothing is written.
	KeepAuthority bool
}

// ErrNoAuthority says that ca.crt or ca.key is missing where a new one must not be made:
// where only one of the two is, or a broker runs.
var ErrNoAuthority = errors.New("the certificate authority is missing")

// CertificatePaths are the files of a private authority and its server certificate.
type CertificatePaths struct {
	// CA is what clients are given as their ca file.
	CA string
	// Cert and Key are what the listener serves.
	Cert, Key string
}

// EnsureCertificates makes, under dir, a private certificate authority (ca.crt,
// ca.key) and a server certificate signed by it (server.crt, server.key), keeping what
// is there and still good: the server certificate is renewed within 30 days of its end,
// or when it lacks one of the hosts. An authority of which one file is missing is
// ErrNoAuthority: all who trust it would be cut off by another. It reports whether
// anything was written.
//
// The server certificate is one that rustls clients accept: EC P-256, X.509 v3,
// CA:FALSE, serverAuth, names in the subject alternative name. Keys have mode 0600.
func EnsureCertificates(dir string, o CertificateOptions) (paths CertificatePaths, changed bool, err error) {
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	paths = CertificatePaths{
		CA:   filepath.Join(dir, "ca.crt"),
		Cert: filepath.Join(dir, "server.crt"),
		Key:  filepath.Join(dir, "server.key"),
	}
	if !o.KeepAuthority {
		if err := os.MkdirAll(dir, privateDirMode); err != nil {
			return paths, false, err
		}
	}
	caKeyPath := filepath.Join(dir, "ca.key")
	ca, caKey, err := loadPair(paths.CA, caKeyPath)
	if errors.Is(err, fs.ErrNotExist) {
		if half := halfAuthority(paths, caKeyPath); half != nil {
			return paths, false, half
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.KeepAuthority:
		return paths, false, fmt.Errorf("%w: %w: restore %s and %s; a start without them makes new ones, and every client has to be given the new %s",
			ErrNoAuthority, err, paths.CA, caKeyPath, filepath.Base(paths.CA))
	case errors.Is(err, fs.ErrNotExist):
		if ca, caKey, err = makeAuthority(paths, caKeyPath, now()); err != nil {
			return paths, false, err
		}
		changed = true
	case err != nil:
		return paths, false, err
	case now().After(ca.NotAfter):
		return paths, false, fmt.Errorf("certificate authority %s: ended on %s: remove it and %s, start again, and give clients the new one",
			paths.CA, ca.NotAfter.Format(time.DateOnly), caKeyPath)
	}
	leaf, _, err := loadPair(paths.Cert, paths.Key)
	switch {
	case err == nil && !changed && leafGood(leaf, ca, o.Hosts, now()):
		return paths, false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return paths, changed, err
	}
	return paths, true, makeLeaf(paths, ca, caKey, o.Hosts, now())
}

// halfAuthority refuses an authority of which one file is missing: another in its place
// would cut off all who trust it. Its key alone, with nothing that it has signed, is what
// a start leaves that ended while it made one: nobody trusts that yet.
func halfAuthority(paths CertificatePaths, caKeyPath string) error {
	there := func(name string) (bool, error) {
		_, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	ca, caErr := there(paths.CA)
	key, keyErr := there(caKeyPath)
	leaf, leafErr := there(paths.Cert)
	if err := errors.Join(caErr, keyErr, leafErr); err != nil {
		return err
	}
	missing, left := paths.CA, caKeyPath
	switch {
	case ca == key, key && !leaf:
		return nil
	case ca:
		missing, left = caKeyPath, paths.CA
	}
	return fmt.Errorf("%w: %s is not there, and %s is: restore it; to have another authority made, which every client has to be given, remove %s too and start again",
		ErrNoAuthority, missing, left, left)
}

func leafGood(leaf, ca *x509.Certificate, hosts []string, now time.Time) bool {
	// One that ends with its authority would not last longer made anew.
	ending := now.Add(renewBefore).After(leaf.NotAfter) && leaf.NotAfter.Before(ca.NotAfter)
	if ending || leaf.CheckSignatureFrom(ca) != nil {
		return false
	}
	for _, h := range hosts {
		if leaf.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

func loadPair(certPath, keyPath string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	der, err := readPEM(certPath, "CERTIFICATE", false)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate %s: %w", certPath, err)
	}
	der, err = readPEM(keyPath, "PRIVATE KEY", true)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate key %s: %w", keyPath, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("certificate key %s: holds a %T, and this authority uses ECDSA", keyPath, parsed)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, fmt.Errorf("certificate %s and key %s do not belong together: restore the pair, or remove both", certPath, keyPath)
	}
	return cert, key, nil
}

// makeAuthority makes an authority where there is none. What one that is gone has signed
// goes first: half an authority beside it is one in use (see halfAuthority), and not one
// whose making was cut short.
func makeAuthority(paths CertificatePaths, keyPath string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	if err := removeFile(paths.Cert); err != nil {
		return nil, nil, err
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Felix private authority " + serial.Text(36)[:8]},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}
	key, err := writePair(paths.CA, keyPath, template, template, nil)
	if err != nil {
		return nil, nil, err
	}
	cert, _, err := loadPair(paths.CA, keyPath)
	return cert, key, err
}

func makeLeaf(paths CertificatePaths, ca *x509.Certificate, caKey *ecdsa.PrivateKey, hosts []string, now time.Time) error {
	serial, err := serialNumber()
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: hosts[0]},
		NotBefore:             now.Add(-backdate),
		NotAfter:              minTime(now.Add(certificateLifetime), ca.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if !slices.Contains(template.DNSNames, h) {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	_, err = writePair(paths.Cert, paths.Key, template, ca, caKey)
	return err
}

// writePair makes a key, signs template for it with the parent's key (its own when
// signer is nil) and writes both. The key goes first: a certificate without its key
// would be refused at the next start, a key without its certificate is made anew.
func writePair(certPath, keyPath string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", keyPath, err)
	}
	if signer == nil {
		signer = key
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("make certificate %s: %w", certPath, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", keyPath, err)
	}
	if err := removeFile(certPath); err != nil {
		return nil, err
	}
	if err := writeFile(keyPath, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), privateFileMode); err != nil {
		return nil, err
	}
	return key, writeFile(certPath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644)
}

// removeFile removes a file, durably, if it is there.
func removeFile(name string) error {
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(filepath.Dir(name)))
}

func serialNumber() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	// Set a high bit: positive, never zero, and always long enough to show a part of.
	return serial.SetBit(serial, 126, 1), nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
