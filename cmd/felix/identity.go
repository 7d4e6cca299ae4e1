package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/wire"
)

// subject is who the tokens say we are that commands mint for themselves.
const subject = "felix-cli"

// clientFlags are the flags every command has.
type clientFlags struct {
	json        bool
	context     string
	brokers     []string
	tenant      string
	namespace   string
	token       string
	tokenFile   string
	httpURL     string
	httpToken   string
	httpTokenF  string
	caFile      string
	httpCAFile  string
	serverName  string
	signingKey  string
	contextFile string
	timeout     time.Duration
}

func (f *clientFlags) register(fs *pflag.FlagSet) {
	fs.BoolVar(&f.json, "json", false, "print JSON")
	fs.StringVar(&f.context, "context", "", "context to use (FELIX_CONTEXT)")
	fs.StringVar(&f.contextFile, "context-file", "", "context file (FELIX_CLI_CONFIG)")
	fs.StringSliceVar(&f.brokers, "brokers", nil, "broker addresses, host:port (FELIX_BROKERS)")
	fs.StringVar(&f.tenant, "tenant", "", "tenant (FELIX_AUTH_TENANT)")
	fs.StringVarP(&f.namespace, "namespace", "n", "", "namespace (FELIX_NAMESPACE)")
	fs.StringVar(&f.token, "token", "", "broker token (FELIX_AUTH_TOKEN)")
	fs.StringVar(&f.tokenFile, "token-file", "", "file holding the broker token (FELIX_AUTH_TOKEN_FILE)")
	fs.StringVar(&f.httpURL, "controlplane-url", "", "base URL of the HTTP API (FELIX_CONTROLPLANE_URL)")
	fs.StringVar(&f.httpToken, "controlplane-token", "", "API token (FELIX_CONTROLPLANE_TOKEN)")
	fs.StringVar(&f.httpTokenF, "controlplane-token-file", "", "file holding the API token (FELIX_CONTROLPLANE_TOKEN_FILE)")
	fs.StringVar(&f.caFile, "ca-file", "", "PEM file trusted for brokers (FELIX_CA_FILE)")
	fs.StringVar(&f.httpCAFile, "controlplane-ca-file", "", "PEM file trusted for an https API (FELIX_CONTROLPLANE_CA)")
	fs.StringVar(&f.serverName, "server-name", "", "name the broker's certificate must carry (FELIX_SERVER_NAME)")
	fs.StringVar(&f.signingKey, "signing-key", "", "private key to mint short-lived tokens from")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "bound of one request")
}

// identity is where a command goes and as whom.
type identity struct {
	config.Context
	name      string // of the context, "" without one
	owner     string // tenant of the context, which its signing key is of
	keyGone   error  // why there is no signing key, where one was to be had
	token     string
	httpToken string
}

// identity joins flags, variables and the context; flags win, then variables.
func (e *environment) identity() (*identity, error) {
	f := &e.opts
	id := &identity{}
	file := f.contextFile
	if file == "" {
		var err error
		if file, err = config.ContextPath(e.getenv); err != nil {
			file = ""
		}
	}
	id.name = first(f.context, e.getenv("FELIX_CONTEXT"))
	if file != "" {
		all, err := config.ReadContexts(file)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		name := first(id.name, all.Current)
		c, ok := all.Contexts[name]
		if !ok && id.name != "" {
			return nil, usagef("no context %q in %s; `felix context ls` lists them", id.name, file)
		}
		if ok {
			id.Context, id.name = c, name
		}
	}
	id.owner = first(id.Tenant, "default")
	if b := e.getenv("FELIX_BROKERS"); b != "" {
		id.Brokers = strings.Split(b, ",")
	}
	if len(f.brokers) > 0 {
		id.Brokers = f.brokers
	}
	for _, s := range []struct {
		dst  *string
		flag string
		env  string
	}{
		{&id.Tenant, f.tenant, "FELIX_AUTH_TENANT"},
		{&id.Namespace, f.namespace, "FELIX_NAMESPACE"},
		{&id.HTTP, f.httpURL, "FELIX_CONTROLPLANE_URL"},
		{&id.CAFile, f.caFile, "FELIX_CA_FILE"},
		{&id.HTTPCAFile, f.httpCAFile, "FELIX_CONTROLPLANE_CA"},
		{&id.ServerName, f.serverName, "FELIX_SERVER_NAME"},
		{&id.SigningKey, f.signingKey, ""},
		{&id.TokenFile, f.tokenFile, "FELIX_AUTH_TOKEN_FILE"},
		{&id.HTTPTokenFile, f.httpTokenF, "FELIX_CONTROLPLANE_TOKEN_FILE"},
		{&id.token, f.token, "FELIX_AUTH_TOKEN"},
		{&id.httpToken, f.httpToken, "FELIX_CONTROLPLANE_TOKEN"},
	} {
		if v := e.getenv(s.env); s.env != "" && v != "" {
			*s.dst = v
		}
		if s.flag != "" {
			*s.dst = s.flag
		}
	}
	onlyFlags(&id.token, &id.TokenFile, f.token, f.tokenFile, f.signingKey)
	onlyFlags(&id.httpToken, &id.HTTPTokenFile, f.httpToken, f.httpTokenF, f.signingKey)
	id.Tenant = first(id.Tenant, "default")
	if f.signingKey == "" {
		id.keyOfTenant()
	}
	id.Namespace = first(id.Namespace, "default")
	id.ServerName = first(id.ServerName, "localhost")
	// Both go into the paths of the API, where a ".." would name something else.
	if err := checkName("tenant", id.Tenant); err != nil {
		return nil, err
	}
	if err := checkName("namespace", id.Namespace); err != nil {
		return nil, err
	}
	return id, nil
}

// keyOfTenant has a command for another tenant than the context's sign as that tenant:
// where a broker keeps the keys of its tenants side by side, with the one that signs
// there. A key that lies elsewhere is used as it is.
func (id *identity) keyOfTenant() {
	own := filepath.Dir(id.SigningKey)
	if id.SigningKey == "" || id.Tenant == id.owner || filepath.Base(own) != id.owner || wire.ValidName(id.Tenant) != nil {
		return
	}
	dir := filepath.Dir(own)
	key, err := auth.SigningKeyFile(dir, id.Tenant)
	if err != nil {
		id.keyGone = usagef("no signing key of tenant %s in %s (%v): `felix tenant create %s` makes the tenant and its key; from elsewhere give --signing-key or tokens of it",
			id.Tenant, dir, err, id.Tenant)
	}
	id.SigningKey = key
}

// onlyFlags has a flag win over a variable or the context that gives a token another way.
func onlyFlags(token, tokenFile *string, flag, flagFile, flagKey string) {
	if flag == "" && (flagFile != "" || flagKey != "") {
		*token = ""
	}
	if flag == "" && flagFile == "" && flagKey != "" {
		*tokenFile = ""
	}
}

func first(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

const noContext = "give --%s, or start a broker with `felix serve`, which writes a context"

// brokerToken is the token to authenticate with at a broker.
func (id *identity) brokerToken() (string, error) {
	return id.tokenFor(auth.AudienceBroker, id.token, id.TokenFile, "token")
}

// apiToken is the token for the HTTP API.
func (id *identity) apiToken() (string, error) {
	return id.tokenFor(auth.AudienceAPI, id.httpToken, id.HTTPTokenFile, "controlplane-token")
}

func (id *identity) tokenFor(audience, literal, file, flag string) (string, error) {
	switch {
	case literal != "":
		return literal, nil
	case file != "":
		raw, err := os.ReadFile(file)
		if err != nil {
			return "", &exitError{exitUsage, fmt.Errorf("token: %w", err)}
		}
		return strings.TrimSpace(string(raw)), nil
	case id.keyGone != nil:
		return "", id.keyGone
	case id.SigningKey == "":
		return "", usagef("no token: "+noContext, flag)
	}
	key, err := auth.LoadSigningKey(id.SigningKey)
	if err != nil {
		return "", &exitError{exitUsage, err}
	}
	perms := auth.AllPermissions(id.Tenant)
	for _, a := range []auth.Action{auth.TenantManage, auth.NodeManage} {
		perms = append(perms, string(a)+":"+auth.ClusterObject().String())
	}
	return key.Mint(auth.MintRequest{Tenant: id.Tenant, Subject: subject, Permissions: perms, Audience: audience})
}

// roots is the pool of a PEM file, or nil, the system's, for none.
func roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("trusted certificates: %w", err)}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, usagef("trusted certificates: %s holds no PEM certificate", file)
	}
	return pool, nil
}

// brokerTLS is the configuration for connections to brokers.
func (id *identity) brokerTLS() (*tls.Config, error) {
	pool, err := roots(id.CAFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: pool, ServerName: id.ServerName, MinVersion: tls.VersionTLS13, NextProtos: []string{auth.ALPN}}, nil
}

// httpClient is the client for the API.
func (id *identity) httpClient() (*http.Client, *url.URL, error) {
	if id.HTTP == "" {
		return nil, nil, usagef("no HTTP address: "+noContext, "controlplane-url")
	}
	base, err := url.Parse(id.HTTP)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, nil, usagef("%q is no http or https URL", id.HTTP)
	}
	pool, err := roots(first(id.HTTPCAFile, id.CAFile))
	if err != nil {
		return nil, nil, err
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	return &http.Client{Transport: t}, base, nil
}
