package node

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/felixlog/felix/internal/config"
)

// writeContext lets the user's commands find this broker, or says what they have to be
// told. A broker that cannot write it serves all the same.
func (n *Node) writeContext() {
	if n.o.ContextFile == "" {
		return
	}
	if n.creds.ownKeys {
		n.log.Info("no context is written, since signing keys of one's own are kept elsewhere: give commands --signing-key or --token-file and --controlplane-token-file, and",
			"brokers", n.ClientAddr(), "controlplane_url", n.HTTPURL(), "ca_file", "what signed "+n.creds.certificate.File())
		return
	}
	want, err := n.contextOf()
	var done contextDone
	if err == nil {
		done, err = putContext(n.o.ContextFile, n.o.Context, n.data.Path(keysDir), want)
	}
	switch {
	case err != nil:
		n.log.Warn("context file not written: commands need --brokers, --controlplane-url, --ca-file and --signing-key",
			"file", n.o.ContextFile, "error", err, "brokers", n.ClientAddr(), "controlplane_url", n.HTTPURL())
	case done.foreign:
		n.log.Warn("context of another broker is left as it is: start with --context NAME to have one of this broker's written, and give commands the same",
			"file", n.o.ContextFile, "context", done.name, "its_brokers", done.was.Brokers)
	case done.changed && done.current:
		n.log.Info("context file written: commands of this user need no flags", "file", n.o.ContextFile, "context", done.name)
	case done.changed:
		n.log.Info("context file written: another is the current one, so commands need --context, or `felix context use`", "file", n.o.ContextFile, "context", done.name)
	}
	if done.replaced {
		n.log.Warn("the context named another broker, and now names this one", "file", n.o.ContextFile, "context", done.name, "it_named", done.was.Brokers)
	}
}

// contextOf is how commands reach this broker. A certificate of one's own is trusted
// itself: who signed it need not be known.
func (n *Node) contextOf() (config.Context, error) {
	c := config.Context{
		Brokers: []string{n.ClientAddr()}, HTTP: n.HTTPURL(), Tenant: defaultTenant, Namespace: defaultNamespace,
		CAFile: n.creds.ca,
	}
	if c.CAFile == "" {
		c.CAFile = n.creds.certificate.File()
	}
	var err error
	if c.ServerName, err = nameIn(n.creds.certificate.Leaf(), n.clientAddr); err != nil {
		return c, fmt.Errorf("%s: %w", n.creds.certificate.File(), err)
	}
	if n.httpCert != nil {
		c.HTTPCAFile = n.httpCert.File()
		if c.HTTP, err = urlIn(n.httpCert.Leaf(), n.httpAddr); err != nil {
			return c, fmt.Errorf("%s: %w", n.httpCert.File(), err)
		}
	}
	if c.SigningKey, err = n.creds.keys.SigningKeyPath(defaultTenant); err != nil {
		return c, err
	}
	for _, name := range []*string{&c.CAFile, &c.HTTPCAFile, &c.SigningKey} {
		if *name == "" {
			continue
		}
		if *name, err = filepath.Abs(*name); err != nil {
			return c, err
		}
	}
	return c, nil
}

// nameIn is a name that the certificate of a broker at addr carries, as clients ask for it.
func nameIn(leaf *x509.Certificate, addr net.Addr) (string, error) {
	names := []string{"localhost"}
	if host, _, err := net.SplitHostPort(addr.String()); err == nil {
		names = append(names, host)
	}
	names = append(names, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range names {
		if leaf.VerifyHostname(name) == nil {
			return name, nil
		}
	}
	return "", errors.New("the certificate carries no name that a client could ask for: make one with localhost in it")
}

// urlIn is the API at addr by a name that its certificate carries: a URL has no other one.
func urlIn(leaf *x509.Certificate, addr net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "", err
	}
	for _, name := range []string{host, "localhost"} {
		if leaf.VerifyHostname(name) == nil {
			return (&url.URL{Scheme: "https", Host: net.JoinHostPort(name, port)}).String(), nil
		}
	}
	return "", fmt.Errorf("the certificate is neither for %s nor for localhost, so commands would refuse it: make one that is", host)
}

// contextDone is what became of a context.
type contextDone struct {
	name     string
	was      config.Context
	foreign  bool // another broker's, left as it is
	changed  bool
	replaced bool // another broker's, and now this one's
	current  bool
}

// putContext puts a broker into a context file: under the name asked for, else where it is
// already, else as config.LocalContext. That may be another broker's of the same user, and
// then stays as it is. It becomes the current one if there is none. The signing keys of
// the broker lie below keys.
func putContext(file, asked, keys string, want config.Context) (done contextDone, err error) {
	all, err := config.ReadContexts(file)
	if err != nil {
		return done, err
	}
	done.name = asked
	if asked == "" {
		done.name = contextOfKeys(all, keys)
	}
	have, ok := all.Contexts[done.name]
	switch done.was = have; {
	case !ok:
	case keysOf(have, keys):
		// What the user changed in it is kept.
		want.Tenant, want.Namespace, want.TokenFile, want.HTTPTokenFile = have.Tenant, have.Namespace, have.TokenFile, have.HTTPTokenFile
		if want.Tenant != defaultTenant {
			want.SigningKey = have.SigningKey
		}
	case asked == "" && !left(have, want):
		done.foreign = true
		return done, nil
	default:
		done.replaced = true
	}
	if ok && reflect.DeepEqual(have, want) && all.Current != "" {
		done.current = all.Current == done.name
		return done, nil
	}
	if all.Contexts == nil {
		all.Contexts = map[string]config.Context{}
	}
	all.Contexts[done.name] = want
	if all.Current == "" {
		all.Current = done.name
	}
	done.changed, done.current = true, all.Current == done.name
	return done, all.Write(file)
}

// contextOfKeys is the name of a context whose signing key lies below keys.
func contextOfKeys(all *config.Contexts, keys string) string {
	if keysOf(all.Contexts[config.LocalContext], keys) {
		return config.LocalContext
	}
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		if keysOf(all.Contexts[name], keys) {
			return name
		}
	}
	return config.LocalContext
}

// keysOf reports whether the signing key of a context lies below keys, by whichever path.
func keysOf(c config.Context, keys string) bool {
	if c.SigningKey == "" {
		return false
	}
	theirs := filepath.Dir(filepath.Dir(c.SigningKey))
	if own, err := filepath.Abs(keys); err == nil && own == theirs {
		return true
	}
	a, errA := os.Stat(keys)
	b, errB := os.Stat(theirs)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// left reports whether a context that a broker wrote leads to that broker no more: its data
// directory is gone, or another one, want, serves at its address. One that somebody wrote
// by hand is never left.
func left(have, want config.Context) bool {
	tenant := filepath.Dir(have.SigningKey)
	written := have.SigningKey != "" && have.TokenFile == "" && have.HTTPTokenFile == "" && have.Tenant == defaultTenant &&
		filepath.Base(tenant) == defaultTenant && filepath.Base(filepath.Dir(tenant)) == keysDir
	if !written {
		return false
	}
	_, err := os.Stat(filepath.Dir(tenant))
	return errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc(have.Brokers, func(b string) bool { return slices.Contains(want.Brokers, b) })
}
