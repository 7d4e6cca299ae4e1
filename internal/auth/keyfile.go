package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

const (
	privateKeySuffix = ".pem"
	publicKeySuffix  = ".pub.pem"
	privateFileMode  = 0o600
	privateDirMode   = 0o700
	// maxKeyFileBytes bounds what is read of a key or certificate file.
	maxKeyFileBytes = 1 << 20
)

// PublicKey is a key that verifies tokens.
type PublicKey struct {
	// ID is the kid, derived from the key itself.
	ID  string
	Key ed25519.PublicKey
}

// SigningKey signs tokens. Its id is that of its public half.
type SigningKey struct {
	ID      string
	private ed25519.PrivateKey
}

// GenerateSigningKey makes a new key from the system's randomness.
func GenerateSigningKey() (*SigningKey, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate signing key: %w", err)
	}
	return signingKey(private), nil
}

func signingKey(private ed25519.PrivateKey) *SigningKey {
	public := private.Public().(ed25519.PublicKey)
	return &SigningKey{ID: keyID(public), private: private}
}

// Public returns the verifying half.
func (k *SigningKey) Public() PublicKey {
	return PublicKey{ID: k.ID, Key: k.private.Public().(ed25519.PublicKey)}
}

// keyID is the JWK thumbprint (RFC 7638, RFC 8037 appendix A.3), cut to 128 bits.
func keyID(public ed25519.PublicKey) string {
	x := base64.RawURLEncoding.EncodeToString(public)
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + x + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// LoadSigningKey reads a private key file (PKCS #8, PEM). A file that others than its
// owner can read is refused.
func LoadSigningKey(path string) (*SigningKey, error) {
	block, err := readPEM(path, "PRIVATE KEY", true)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", path, err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("signing key %s: holds a %T, and only Ed25519 keys sign tokens", path, parsed)
	}
	return signingKey(private), nil
}

func loadPublicKey(path string) (PublicKey, error) {
	block, err := readPEM(path, "PUBLIC KEY", false)
	if err != nil {
		return PublicKey{}, err
	}
	parsed, err := x509.ParsePKIXPublicKey(block)
	if err != nil {
		return PublicKey{}, fmt.Errorf("verifying key %s: %w", path, err)
	}
	public, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return PublicKey{}, fmt.Errorf("verifying key %s: holds a %T, and only Ed25519 keys verify tokens", path, parsed)
	}
	return PublicKey{ID: keyID(public), Key: public}, nil
}

// save writes the private key as path, which must not exist.
func (k *SigningKey) save(path string) error {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return fmt.Errorf("signing key %s: %w", path, err)
	}
	return writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), privateFileMode)
}

func readPEM(path, kind string, private bool) ([]byte, error) {
	data, mode, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if private && runtime.GOOS != "windows" && mode.Perm()&0o077 != 0 {
		return nil, fmt.Errorf("private key %s: mode %04o lets others use it: chmod 600 it", path, mode.Perm())
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("key file %s: holds no PEM block %q", path, kind)
	}
	return block.Bytes, nil
}

func readFile(path string) ([]byte, fs.FileMode, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes+1))
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxKeyFileBytes {
		return nil, 0, fmt.Errorf("read %s: larger than %d bytes, so not a key or certificate", path, maxKeyFileBytes)
	}
	return data, info.Mode(), nil
}

// writeFile puts data at path as a whole or not at all: a reader never meets half a
// key, and neither does the next start after a power cut.
func writeFile(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, newPrefix+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}
