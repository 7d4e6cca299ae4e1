package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/felixlog/felix/wire"
)

// Limits on what a key directory may hold: they bound the work one token can cause.
const (
	// MaxKeysPerTenant is the most keys, staged ones included, a tenant may have.
	MaxKeysPerTenant = 16
)

// currentFile names the key of a tenant that signs.
const currentFile = "current"

// ErrNoSigningKey says that a tenant has no key that signs here.
var ErrNoSigningKey = errors.New("no signing key")

// ErrCurrentKey says that the key that signs cannot be taken away: activate another
// one first.
var ErrCurrentKey = errors.New("the current key cannot be removed")

// Keys is a directory of Ed25519 keys:
//
//	<dir>/<tenant>/<kid>.pem       a private key; it can sign, and it verifies
//	<dir>/<tenant>/<kid>.pub.pem   a public key; it verifies only
//	<dir>/<tenant>/current         the kid that signs
//
// It is safe for concurrent use. Lookups read a snapshot and never touch the disk;
// changes made by another process are seen after [Keys.Reload].
type Keys struct {
	dir string

	// change serialises everything that writes the directory or the snapshot. Only
	// changes take it, never a lookup, so the disk may be waited for under it.
	change sync.Mutex
	state  atomic.Pointer[keyring]
}

type keyring struct {
	version uint64
	tenants map[string]*tenantKeys
}

type tenantKeys struct {
	current   string
	signing   map[string]*SigningKey
	verifying []PublicKey // the current one first, the rest by id
}

// OpenKeys reads the directory, making it when it is missing.
func OpenKeys(dir string) (*Keys, error) {
	if err := os.MkdirAll(dir, privateDirMode); err != nil {
		return nil, err
	}
	k := &Keys{dir: dir}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	k.finishRemovals()
	return k, nil
}

// removedPrefix begins the name of a removed tenant's directory on its way out: no name of
// a tenant has a space.
const removedPrefix = ".removed "

// newPrefix begins the name of a file that is not put into place yet.
const newPrefix = ".new-"

// OwnTenantDir says whether Keys may have made a directory of this name among the tenants'.
func OwnTenantDir(name string) bool { return validName(name) || strings.HasPrefix(name, removedPrefix) }

// OwnKeyFile says whether Keys may have made a file of this name in a tenant's directory.
func OwnKeyFile(name string) bool {
	return name == currentFile || strings.HasSuffix(name, publicKeySuffix) || strings.HasSuffix(name, privateKeySuffix) || strings.HasPrefix(name, newPrefix)
}

// OwnCertificateFile says whether EnsureCertificates may have made a file of this name.
func OwnCertificateFile(name string) bool {
	switch name {
	case "ca.crt", "ca.key", "server.crt", "server.key":
		return true
	}
	return strings.HasPrefix(name, newPrefix)
}

// finishRemovals goes on with what a stop cut short. The keys are out of use already; what
// cannot be removed now is tried again at the next start.
func (k *Keys) finishRemovals() {
	left, _ := filepath.Glob(filepath.Join(k.dir, removedPrefix+"*"))
	for _, dir := range left {
		if os.RemoveAll(dir) != nil {
			return
		}
	}
}

// Reload reads the directory again. On an error the keys in use stay as they were.
func (k *Keys) Reload() error {
	k.change.Lock()
	defer k.change.Unlock()
	return k.reload()
}

func (k *Keys) reload() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	next := &keyring{tenants: make(map[string]*tenantKeys)}
	for _, e := range entries {
		if !e.IsDir() || !validName(e.Name()) {
			continue
		}
		t, err := loadTenant(filepath.Join(k.dir, e.Name()))
		if err != nil {
			return fmt.Errorf("keys of tenant %s: %w", e.Name(), err)
		}
		next.tenants[e.Name()] = t
	}
	if old := k.state.Load(); old != nil {
		next.version = old.version
		if old.same(next) {
			return nil
		}
		next.version++
	}
	k.state.Store(next)
	return nil
}

func (r *keyring) same(other *keyring) bool {
	if len(r.tenants) != len(other.tenants) {
		return false
	}
	for name, t := range r.tenants {
		o := other.tenants[name]
		if o == nil || o.current != t.current || len(o.signing) != len(t.signing) ||
			!slices.EqualFunc(o.verifying, t.verifying, func(a, b PublicKey) bool { return a.ID == b.ID }) {
			return false
		}
	}
	return true
}

func loadTenant(dir string) (*tenantKeys, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	t := &tenantKeys{signing: make(map[string]*SigningKey)}
	add := func(p PublicKey) {
		if !slices.ContainsFunc(t.verifying, func(have PublicKey) bool { return have.ID == p.ID }) {
			t.verifying = append(t.verifying, p)
		}
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() || strings.HasPrefix(e.Name(), "."):
		case strings.HasSuffix(e.Name(), publicKeySuffix):
			p, err := loadPublicKey(path)
			if err != nil {
				return nil, err
			}
			add(p)
		case strings.HasSuffix(e.Name(), privateKeySuffix):
			s, err := LoadSigningKey(path)
			if err != nil {
				return nil, err
			}
			t.signing[s.ID] = s
			add(s.Public())
		}
		if len(t.verifying) > MaxKeysPerTenant {
			return nil, fmt.Errorf("more than %d keys in %s: remove those no token uses any more", MaxKeysPerTenant, dir)
		}
	}
	data, _, err := readFile(filepath.Join(dir, currentFile))
	switch {
	case err == nil:
		t.current = strings.TrimSpace(string(data))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	slices.SortFunc(t.verifying, func(a, b PublicKey) int {
		if (a.ID == t.current) != (b.ID == t.current) {
			if a.ID == t.current {
				return -1
			}
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
	return t, nil
}

func (k *Keys) tenant(tenant string) *tenantKeys { return k.state.Load().tenants[tenant] }

// VerifyingKeys returns the keys whose signatures on tokens of the tenant count, the
// current one first, and a number that changes whenever any tenant's keys do. The
// slice must not be changed.
func (k *Keys) VerifyingKeys(tenant string) (keys []PublicKey, version uint64) {
	state := k.state.Load()
	if t := state.tenants[tenant]; t != nil {
		keys = t.verifying
	}
	return keys, state.version
}

// Tenants lists the tenants that have keys, in order.
func (k *Keys) Tenants() []string {
	state := k.state.Load()
	names := make([]string, 0, len(state.tenants))
	for name := range state.tenants {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Current returns the key that signs for the tenant, or [ErrNoSigningKey].
func (k *Keys) Current(tenant string) (*SigningKey, error) {
	if t := k.tenant(tenant); t != nil {
		if s := t.signing[t.current]; s != nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("tenant %s: %w", quote(tenant), ErrNoSigningKey)
}

// SigningKeyPath is the file of the key that signs for the tenant, for a client
// context that mints its own tokens.
func (k *Keys) SigningKeyPath(tenant string) (string, error) {
	s, err := k.Current(tenant)
	if err != nil {
		return "", err
	}
	return filepath.Join(k.dir, tenant, s.ID+privateKeySuffix), nil
}

// SigningKeyFile is the file of the key that signs for a tenant in a directory of keys,
// for a command that signs on the broker's machine. The tenant's name is valid.
func SigningKeyFile(dir, tenant string) (string, error) {
	t, err := loadTenant(filepath.Join(dir, tenant))
	if err != nil {
		return "", err
	}
	if t.signing[t.current] == nil {
		return "", ErrNoSigningKey
	}
	return filepath.Join(dir, tenant, t.current+privateKeySuffix), nil
}

// Ensure makes a first signing key for a tenant that has none, and reports whether
// it did.
func (k *Keys) Ensure(tenant string) (created bool, err error) {
	if _, err := k.Current(tenant); err == nil {
		return false, nil
	}
	id, err := k.Stage(tenant)
	if err != nil {
		return false, err
	}
	return true, k.Activate(tenant, id)
}

// Stage adds a key that verifies but does not sign yet, so that every broker learns
// it before the first token bears it. It returns the new kid.
func (k *Keys) Stage(tenant string) (id string, err error) {
	if err := wire.ValidName(tenant); err != nil {
		return "", fmt.Errorf("tenant: %w", err)
	}
	k.change.Lock()
	defer k.change.Unlock()
	if t := k.tenant(tenant); t != nil && len(t.verifying) >= MaxKeysPerTenant {
		return "", fmt.Errorf("tenant %s has %d keys already: remove one first", tenant, MaxKeysPerTenant)
	}
	s, err := GenerateSigningKey()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(k.dir, tenant)
	if err := os.MkdirAll(dir, privateDirMode); err != nil {
		return "", err
	}
	if err := s.save(filepath.Join(dir, s.ID+privateKeySuffix)); err != nil {
		return "", err
	}
	return s.ID, k.reload()
}

// Activate makes a staged key the one that signs.
func (k *Keys) Activate(tenant, id string) error {
	k.change.Lock()
	defer k.change.Unlock()
	t := k.tenant(tenant)
	if t == nil || t.signing[id] == nil {
		return fmt.Errorf("tenant %s, key %s: %w", quote(tenant), quote(id), ErrNoSigningKey)
	}
	if err := writeFile(filepath.Join(k.dir, tenant, currentFile), []byte(id+"\n"), privateFileMode); err != nil {
		return err
	}
	return k.reload()
}

// Remove takes a key away: tokens it signed are refused from now on. The current key
// is refused with [ErrCurrentKey].
func (k *Keys) Remove(tenant, id string) error {
	k.change.Lock()
	defer k.change.Unlock()
	t := k.tenant(tenant)
	if t == nil || !slices.ContainsFunc(t.verifying, func(p PublicKey) bool { return p.ID == id }) {
		return fmt.Errorf("tenant %s has no key %s", quote(tenant), quote(id))
	}
	if t.current == id {
		return fmt.Errorf("tenant %s, key %s: %w", tenant, id, ErrCurrentKey)
	}
	dir := filepath.Join(k.dir, tenant)
	for _, suffix := range []string{privateKeySuffix, publicKeySuffix} {
		if err := os.Remove(filepath.Join(dir, id+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	return k.reload()
}

// RemoveTenant takes all keys of a tenant away: every token signed with them is refused
// from now on, also by a tenant that later gets its name. It stops at the first key that
// cannot be removed; one without keys is no error.
func (k *Keys) RemoveTenant(tenant string) error {
	if err := wire.ValidName(tenant); err != nil {
		return fmt.Errorf("tenant: %w", err)
	}
	k.change.Lock()
	defer k.change.Unlock()
	dir := filepath.Join(k.dir, tenant)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// Under another name first, so that a stop half-way leaves no tenant with some keys.
	gone := filepath.Join(k.dir, removedPrefix+tenant)
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(dir, gone); err != nil {
		return err
	}
	if err := syncDir(k.dir); err != nil {
		return err
	}
	return errors.Join(k.reload(), os.RemoveAll(gone))
}

type jwk struct {
	KeyType string `json:"kty"`
	ID      string `json:"kid"`
	Alg     string `json:"alg"`
	Use     string `json:"use"`
	Curve   string `json:"crv"`
	X       string `json:"x"`
}

// JWKS returns the tenant's public keys as a JSON Web Key Set (RFC 7517, RFC 8037).
// A tenant without keys has an empty set.
func (k *Keys) JWKS(tenant string) ([]byte, error) {
	set := struct {
		Keys []jwk `json:"keys"`
	}{Keys: []jwk{}}
	keys, _ := k.VerifyingKeys(tenant)
	for _, p := range keys {
		set.Keys = append(set.Keys, jwk{KeyType: "OKP", ID: p.ID, Alg: "EdDSA", Use: "sig", Curve: "Ed25519",
			X: base64.RawURLEncoding.EncodeToString(p.Key)})
	}
	return json.Marshal(set)
}
