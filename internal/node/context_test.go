package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
)

// contexts are those of the file, and which is the current one.
func contexts(t *testing.T, file string) (map[string]config.Context, string) {
	t.Helper()
	all, err := config.ReadContexts(file)
	require.NoError(t, err)
	return all.Contexts, all.Current
}

// beside starts another broker of the same user.
func (r *rig) beside(change func(*Options)) *rig {
	return start(r.t, func(o *Options) {
		o.ContextFile = r.options.ContextFile
		if change != nil {
			change(o)
		}
	})
}

// again starts the broker of r's data directory once more.
func (r *rig) again(change func(*Options)) *rig {
	return r.beside(func(o *Options) {
		o.Config.Data = r.options.Config.Data
		if change != nil {
			change(o)
		}
	})
}

// Two brokers of one user have one context file: the second leaves the first one's context
// alone and says so, unless it is told another name or the first one's is of no more use.
func TestContextsOfOtherBrokersAreKept(t *testing.T) {
	const left = "context of another broker is left as it is: start with --context NAME"
	first := start(t, nil)
	file := first.options.ContextFile
	of := func(r *rig, name string) bool {
		all, _ := contexts(t, file)
		return all[name].HTTP == r.node.HTTPURL() && filepath.Dir(filepath.Dir(all[name].SigningKey)) == r.node.data.Path(keysDir)
	}
	require.True(t, of(first, "local"))

	second := first.beside(nil)
	require.Contains(t, second.log.String(), left)
	require.Contains(t, second.log.String(), first.node.ClientAddr(), "whose it is")
	all, current := contexts(t, file)
	require.Len(t, all, 1)
	require.Equal(t, "local", current)
	require.True(t, of(first, "local"))

	// With a name of its own, and from then on without being told.
	second.stop()
	second = second.again(func(o *Options) { o.Context = "second" })
	require.True(t, of(second, "second"))
	require.Contains(t, second.log.String(), "another is the current one, so commands need --context")
	all, _ = contexts(t, file)
	mine := all["second"]
	mine.Namespace = "payments"
	require.NoError(t, (&config.Contexts{Current: "local", Contexts: map[string]config.Context{"local": all["local"], "second": mine}}).Write(file))
	second.stop()
	second = second.again(nil)
	require.True(t, of(second, "second"))
	require.NotContains(t, second.log.String(), left)
	all, current = contexts(t, file)
	require.Equal(t, "payments", all["second"].Namespace, "what the user made of it")
	require.Equal(t, "local", current)
	require.True(t, of(first, "local"))

	// The first one finds its own, at another address too.
	first.stop()
	first = first.again(nil)
	require.True(t, of(first, "local"))

	// A name that is asked for is taken, and whose it was is said.
	third := first.beside(func(o *Options) { o.Context = "local" })
	require.True(t, of(third, "local"))
	require.Contains(t, third.log.String(), "the context named another broker, and now names this one")
	require.Contains(t, third.log.String(), first.node.ClientAddr())

	// So is one whose data directory is gone, or at whose address another broker serves.
	third.stop()
	require.NoError(t, os.RemoveAll(third.options.Config.Data))
	first.stop()
	first = first.again(nil)
	require.True(t, of(first, "local"))
	all, _ = contexts(t, file)
	there := all["local"]
	there.SigningKey = filepath.Join(t.TempDir(), "keys", "default", "1.pem")
	done, err := putContext(file, "", filepath.Dir(filepath.Dir(there.SigningKey)), there)
	require.NoError(t, err)
	require.Equal(t, contextDone{name: "local", was: all["local"], changed: true, replaced: true, current: true}, done)
}

// A context that somebody wrote is not a broker's to replace.
func TestAContextOfOnesOwnIsKept(t *testing.T) {
	for name, mine := range map[string]config.Context{
		"with tokens":         {TokenFile: "/etc/felix/token", HTTPTokenFile: "/etc/felix/api-token"},
		"with a key":          {SigningKey: "/etc/felix/acme.pem", Tenant: "default"},
		"of another tenant":   {SigningKey: "/gone/keys/acme/1.pem", Tenant: "acme"},
		"that says no tenant": {SigningKey: "/gone/keys/default/1.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			mine.Brokers = []string{"127.0.0.1:5000"}
			require.NoError(t, (&config.Contexts{Current: "local", Contexts: map[string]config.Context{"local": mine}}).Write(o.ContextFile))
			r := start(t, func(p *Options) { *p = o })
			all, _ := contexts(t, o.ContextFile)
			require.Equal(t, map[string]config.Context{"local": mine}, all)
			require.Contains(t, r.log.String(), "is left as it is")
		})
	}
}

// With certificates of one's own, who signed them is not known, and the certificate itself
// is what commands trust. What cannot be written is said.
func TestContextWithCertificatesOfOnesOwn(t *testing.T) {
	certificate := func(hosts ...string) auth.CertificatePaths {
		paths, _, err := auth.EnsureCertificates(t.TempDir(), auth.CertificateOptions{Hosts: hosts})
		require.NoError(t, err)
		return paths
	}
	local, remote := certificate(), certificate("broker-1.example")
	r := start(t, func(o *Options) {
		o.Config.TLS.Cert, o.Config.TLS.Key = remote.Cert, remote.Key
		o.Config.HTTP.TLSCert, o.Config.HTTP.TLSKey = local.Cert, local.Key
	})
	all, current := contexts(t, r.options.ContextFile)
	require.Equal(t, "local", current)
	c := all["local"]
	require.Equal(t, "broker-1.example", c.ServerName)
	require.Equal(t, []string{remote.Cert, local.Cert}, []string{c.CAFile, c.HTTPCAFile})
	require.FileExists(t, c.SigningKey)

	// The API's certificate beside a private authority's for clients.
	r = start(t, func(o *Options) { o.Config.HTTP.TLSCert, o.Config.HTTP.TLSKey = local.Cert, local.Key })
	all, _ = contexts(t, r.options.ContextFile)
	require.Equal(t, []string{r.node.creds.ca, local.Cert}, []string{all["local"].CAFile, all["local"].HTTPCAFile})

	// One that is not for the API's address.
	r = start(t, func(o *Options) { o.Config.HTTP.TLSCert, o.Config.HTTP.TLSKey = remote.Cert, remote.Key })
	require.NoFileExists(t, r.options.ContextFile)
	require.Contains(t, r.log.String(), "context file not written: commands need --brokers, --controlplane-url, --ca-file and --signing-key")
	require.Contains(t, r.log.String(), "is neither for 127.0.0.1 nor for localhost")
}
