package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/obs"
	"github.com/felixlog/felix/internal/server"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
	"golang.org/x/net/netutil"
)

// Options are what a node is started with.
type Options struct {
	Config  config.Options
	Version string
	// ContextFile is where the commands of this user look for a broker; empty writes none.
	ContextFile string
	// Context is the context to write there, whatever it is now. Empty is the one that is
	// this data directory's, else config.LocalContext unless that is another broker's.
	Context string
	Log     *slog.Logger
	// FS is the file system of the data; nil is the host's.
	FS vfs.FS
	// Boot is the machine's boot id; empty asks the machine.
	Boot string
	// Getenv is os.Getenv when nil.
	Getenv func(string) string
	// Now is the wall clock by which certificates end; time.Now when nil.
	Now func() time.Time

	openFiles uint64           // how many files the process may open; 0 asks the system
	looks     <-chan time.Time // when certificates and keys are looked at; nil: each reloadEvery
}

// Node is one broker process: everything `felix serve` runs.
type Node struct {
	o       Options
	log     *slog.Logger
	data    *DataDir
	creds   *credentials
	metrics *obs.Metrics
	plan    plan

	http     *http.Server
	httpCert *auth.Certificate // nil without HTTPS
	api      *api.Server
	catalog  *meta.Catalog
	store    store
	disk     *storage.Disk // nil without storage
	broker   *broker.Broker
	server   *server.Server

	unreadable           unreadable
	httpAddr, clientAddr net.Addr
	status               atomic.Pointer[string] // starting, recovering, ready, draining
	failed               chan error             // of size 1: the first part that ended by itself
	asked                chan struct{}          // of size 1: certificates and keys are to be looked at, once however often it was asked
	serving              context.CancelFunc     // ends the server's Serve
	stopped              context.Context        // ends the background goroutines
	stop                 context.CancelFunc
	running              sync.WaitGroup
	backing              atomic.Bool // a backup is being taken
	stopOnce             sync.Once
	stopErr              error
}

// Start brings a broker up. When it returns, clients are served; shards may still be
// opening, and until then are answered as not ready (see Ready). ctx bounds Start
// alone. Stop has to be called on the node returned.
func Start(ctx context.Context, o Options) (_ *Node, err error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.Boot == "" {
		o.Boot = machineBoot()
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	n := &Node{o: o, log: o.Log, failed: make(chan error, 1), asked: make(chan struct{}, 1), serving: func() {}}
	n.stopped, n.stop = context.WithCancel(context.Background())
	n.setStatus("starting")
	defer func() {
		if err != nil {
			err = errors.Join(err, n.abandon())
		}
	}()
	c := &n.o.Config
	if n.data, err = OpenDataDir(o.FS, c.Data, o.Boot); err != nil {
		return nil, err
	}
	n.report()
	if limit := limitMemory(c.Memory.Limit, o.Getenv, cgroupFiles); limit > 0 {
		n.log.Debug("memory limit", "bytes", limit)
	}
	if n.plan, err = planOf(c, o.FS); err != nil {
		return nil, fmt.Errorf("storage: %w", err)
	}
	n.reportFiles()
	if n.plan.root != "" {
		if err := n.data.openShards(n.plan.root); err != nil {
			return nil, err
		}
	}
	n.metrics = obs.New(o.Version)
	if err := n.startHTTP(); err != nil {
		return nil, err
	}
	if n.creds, err = openCredentials(n.data, c, o.Now); err != nil {
		return nil, err
	}
	n.reportEnded()
	if err := n.reportStrays(n.secretPlaces()); err != nil {
		return nil, err
	}
	if err := n.openCatalog(ctx); err != nil {
		return nil, err
	}
	if err := n.openBroker(ctx); err != nil {
		return nil, err
	}
	if err := n.serveClients(); err != nil {
		return nil, err
	}
	n.api.Open(api.Backend{
		Catalog: n.catalog, Keys: n.creds.keys, Streams: n.broker, Backups: backups{n},
		RecordBytes: n.plan.record, MostRecordBytes: n.plan.mostRecord,
	})
	n.writeContext()
	n.running.Go(n.follow)
	n.running.Go(n.reload)
	return n, nil
}

// ClientAddr is where clients are served, HTTPAddr where the API is.
func (n *Node) ClientAddr() string { return n.clientAddr.String() }

// HTTPAddr is the address of API, health and metrics.
func (n *Node) HTTPAddr() string { return n.httpAddr.String() }

// HTTPURL is the base URL of the API.
func (n *Node) HTTPURL() string {
	scheme := "http://"
	if n.o.Config.HTTP.TLSCert != "" {
		scheme = "https://"
	}
	return scheme + n.HTTPAddr()
}

// Failed hands out the error of a part that ended by itself: the node is of no more
// use and should be stopped.
func (n *Node) Failed() <-chan error { return n.failed }

func (n *Node) fail(part string, err error) {
	select {
	case n.failed <- fmt.Errorf("%s: %w", part, err):
	default:
	}
}

func (n *Node) setStatus(s string) { n.status.Store(&s) }

// report says what the data directory looked like.
func (n *Node) report() {
	d := n.data
	for _, name := range d.Stray {
		n.log.Warn("file in the data directory is not Felix's and is left alone", "dir", d.Root, "file", name)
	}
	if err := d.Unsaved(); err != nil {
		n.log.Warn("node.json cannot be written, the disk is full: make room, it is written then", "dir", d.Root, "error", err)
	}
	switch {
	case d.Rebuilt:
		n.log.Warn("node.json was missing or empty and was made anew, with another disk id", "dir", d.Root, "disk_id", d.DiskID)
	case d.Restarted:
		n.log.Info("the machine was restarted since the logs were last recovered", "dir", d.Root)
	case !d.Fresh && !d.Clean:
		n.log.Info("the last stop was not a clean one", "dir", d.Root)
	}
}

// reportFiles says when the settings promise more files and connections than the process
// may open: without the words it is noticed under load only.
func (n *Node) reportFiles() {
	limit := n.o.openFiles
	if limit == 0 {
		limit = mostOpenFiles()
	}
	connections, files := n.plan.server.Connections, 0
	if n.plan.root != "" {
		files = n.plan.disk.maxOpenFiles
	}
	if limit == 0 || uint64(connections+files) <= limit {
		return
	}
	n.log.Warn("this process may open fewer files than limits.connections and storage.max_open_files come to: raise its limit (ulimit -n, LimitNOFILE=) or lower the settings",
		"open_files_limit", limit, "limits.connections", connections, "storage.max_open_files", files)
}

// httpConnections bounds the connections of the HTTP API, which anybody may open: the
// next one waits for one to end.
const httpConnections = 128

// startHTTP brings the HTTP listener up: health and metrics from now on.
func (n *Node) startHTTP() error {
	c := &n.o.Config.HTTP
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return busy("http.listen", c.Listen, err)
	}
	n.httpAddr = l.Addr()
	l = netutil.LimitListener(l, httpConnections)
	n.api = api.New(api.Options{Ready: n.Ready, Metrics: n.metrics.Handler(), MaxBodyBytes: c.MaxBodyBytes, Log: n.log})
	n.http = &http.Server{
		Handler:           n.api,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
	serve := func() error { return n.http.Serve(l) }
	if c.TLSCert != "" {
		cert, err := auth.LoadCertificate(c.TLSCert, c.TLSKey)
		if err != nil {
			return errors.Join(fmt.Errorf("http.tls_cert: %w", err), l.Close())
		}
		n.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.Get}
		n.httpCert = cert
		serve = func() error { return n.http.ServeTLS(l, "", "") }
	}
	n.running.Go(func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			n.fail("http", err)
		}
	})
	return nil
}

// openCatalog opens the metadata and makes what is there from the first start.
func (n *Node) openCatalog(ctx context.Context) error {
	var err error
	if n.store, err = openStore(ctx, n); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	n.catalog = meta.NewCatalog(n.store)
	// Tenants of one's own keys need not be called default.
	if n.o.Config.Auth.Keys != "" {
		return n.adoptTenants(ctx)
	}
	return n.ensureTenant(ctx, defaultTenant)
}

// adoptTenants makes a tenant for each that has signing keys: whoever holds a key
// could do nothing otherwise.
func (n *Node) adoptTenants(ctx context.Context) error {
	for _, tenant := range n.creds.keys.Tenants() {
		if err := n.ensureTenant(ctx, tenant); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) ensureTenant(ctx context.Context, tenant string) error {
	if _, err := n.catalog.GetTenant(ctx, tenant); err == nil {
		return nil
	} else if !errors.Is(err, meta.ErrNotFound) {
		return fmt.Errorf("metadata: %w", err)
	}
	if _, err := n.catalog.CreateTenant(ctx, meta.Tenant{ID: tenant}); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if _, err := n.catalog.CreateNamespace(ctx, meta.Namespace{Tenant: tenant, Name: defaultNamespace}); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

// openBroker opens the disk and begins to open the shards.
func (n *Node) openBroker(ctx context.Context) error {
	events := n.metrics.StorageEvents(n.log)
	counted := events.OnRecovery
	events.OnRecovery = func(shard string, r storage.RecoveryReport) {
		counted(shard, r)
		if r.DurableGone {
			n.unreadable.noteGone(shard, r.Lost)
		}
	}
	if n.plan.root != "" {
		if err := n.reportStrays(broker.Roots(n.plan.root)); err != nil {
			return err
		}
		var err error
		n.disk, err = storage.NewDisk(storage.DiskOptions{
			FS: n.o.FS, Dir: n.plan.root, MaxFlushes: n.plan.disk.maxFlushes, MaxOpenFiles: n.plan.disk.maxOpenFiles,
			MinFree: n.plan.disk.minFree, IOUring: n.plan.disk.ioUring, Events: n.diskEvents(),
		})
		if err != nil {
			return fmt.Errorf("storage: %w", err)
		}
	}
	var err error
	n.broker, err = broker.Open(ctx, broker.Options{
		Catalog: n.catalog, Root: n.plan.root, FS: n.o.FS, Disk: n.disk, Restarted: n.data.Restarted,
		Defaults: n.plan.defaults, Limits: n.plan.broker, Storage: events, Events: n.brokerEvents(), Log: n.log,
	})
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	n.setStatus("recovering")
	return errors.Join(n.metrics.Watch(n.gauges()), n.metrics.WatchReadings(n.readings()))
}

// serveClients opens the clients' sockets and serves them.
func (n *Node) serveClients() error {
	s, err := server.New(server.Options{
		Broker:            n.broker,
		Verifier:          auth.NewVerifier(auth.VerifierOptions{Keys: n.creds.keys}),
		TLS:               auth.ServerTLS(n.creds.certificate, n.plan.alpn),
		StatelessResetKey: n.creds.resetKey,
		Durable:           n.plan.root != "",
		Limits:            n.plan.server,
		Events:            n.serverEvents(),
		Log:               n.log,
	})
	if err != nil {
		return fmt.Errorf("clients: %w", err)
	}
	udp, tcp, err := listenBoth(n.o.Config.Listen)
	if err != nil {
		return err
	}
	n.server, n.clientAddr = s, tcp.Addr()
	ctx, cancel := context.WithCancel(n.stopped)
	n.serving = cancel
	n.running.Go(func() {
		if err := s.Serve(ctx, udp, tcp); err != nil {
			n.fail("clients", err)
		} else if ctx.Err() == nil {
			n.fail("clients", errors.New("stopped listening"))
		}
	})
	return nil
}

// follow waits for the recovery and then notes it in the data directory.
func (n *Node) follow() {
	began := time.Now()
	if err := n.broker.WaitReady(n.stopped); err != nil {
		if n.stopped.Err() == nil {
			n.fail("broker", err)
		}
		return
	}
	ready := "ready"
	was := "recovering"
	n.status.CompareAndSwap(n.statusIs(was), &ready)
	p := n.broker.Progress()
	n.log.Info("all shards opened", "shards", p.Total, "out_of_service", p.Failed, "seconds", time.Since(began).Seconds())
	if err := n.broker.WaitJudged(n.stopped); err != nil {
		return // it stops: what was not looked at is judged as after this start
	}
	if err := n.data.Recovered(); err != nil {
		n.log.Error("node.json cannot be written: until it is, a further start would judge damage as after this one", "error", err)
	}
}

// statusIs is the pointer of the present status if it is s, else one that is not.
func (n *Node) statusIs(s string) *string {
	if now := n.status.Load(); *now == s {
		return now
	}
	return nil
}

// reloadEvery is how often certificates and keys are looked at.
const reloadEvery = 30 * time.Second

// reload takes replaced certificates and keys into use, and renews the private
// authority's certificate. It alone does, so that nobody reads half of what is written.
func (n *Node) reload() {
	looks := n.o.looks
	if looks == nil {
		t := time.NewTicker(reloadEvery)
		defer t.Stop()
		looks = t.C
	}
	for {
		select {
		case <-n.stopped.Done():
			return
		case <-looks:
			n.look()
		case <-n.asked:
			n.look()
			// What of it was not to be had, or was replaced, is said by then.
			n.log.Info("certificates and keys were looked at, as was asked for")
		}
	}
}

// Reload has certificates and keys looked at now. It does not wait for it.
func (n *Node) Reload() {
	select {
	case n.asked <- struct{}{}:
	default: // asked for already, and not begun
	}
}

// certificates are those that are served.
func (n *Node) certificates() []*auth.Certificate {
	if n.httpCert == nil {
		return []*auth.Certificate{n.creds.certificate}
	}
	return []*auth.Certificate{n.creds.certificate, n.httpCert}
}

// reportEnded says which certificates clients will refuse.
func (n *Node) reportEnded() {
	now := n.o.Now()
	for _, c := range n.certificates() {
		if end := c.Leaf().NotAfter; now.After(end) {
			n.log.Warn("certificate has ended: clients that check it refuse this broker until it is replaced", "file", c.File(), "not_after", end)
		}
	}
}

func (n *Node) look() {
	// Why it could not be has been said, and /ready says it.
	if done, err := n.data.Save(); err == nil && done {
		n.log.Info("node.json was written", "dir", n.data.Root)
	}
	n.creds.renew(n.o.Now, n.log)
	for _, c := range n.certificates() {
		if changed, err := c.Reload(n.o.Now()); err != nil {
			n.log.Error("certificate not read again; the one in use stays", "error", err)
		} else if changed {
			n.log.Info("certificate replaced", "not_after", c.Leaf().NotAfter)
		}
	}
	if err := n.creds.keys.Reload(); err != nil {
		n.log.Error("signing keys not read again; those in use stay", "error", err)
	}
}
