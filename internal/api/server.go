package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
)

// Readiness is what /ready says.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Status  string   `json:"status"` // ready, recovering, degraded, draining, starting
	Reasons []Reason `json:"reasons,omitempty"`
	// Recovery counts the shards opened at the start.
	Recovery Recovery `json:"recovery"`
}

// Reason is one cause of not being ready, or of being degraded.
type Reason struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Recovery is the progress of opening the shards.
type Recovery struct {
	Done  int `json:"done"`
	Total int `json:"total"`
	// Percent counts a shard being opened by what was read of its log.
	Percent int `json:"percent"`
	// BytesRead and Bytes are of the logs being opened now.
	BytesRead int64 `json:"bytes_read,omitempty"`
	Bytes     int64 `json:"bytes,omitempty"`
}

// Options make a Server.
type Options struct {
	// Ready is asked on each /ready; it must not block.
	Ready func() Readiness
	// Metrics serves /metrics.
	Metrics http.Handler
	// MaxBodyBytes bounds a request body.
	MaxBodyBytes int64
	Log          *slog.Logger
}

// Backend is what /v1 works on.
type Backend struct {
	Catalog *meta.Catalog
	Keys    *auth.Keys
	Streams Streams
	Backups Backups
	// RecordBytes is the largest record of a stream that does not say, MostRecordBytes
	// the largest a stream may ask for; zero leaves both to the catalog.
	RecordBytes     int64
	MostRecordBytes int64
}

// Streams creates and deletes streams and caches and returns when the broker serves
// them, or does so no more, and does to them what an operator asks for. [*broker.Broker] is one.
type Streams interface {
	// CreateAll makes all or none; an error about one of them is a *meta.ItemError. RemoveAll
	// takes back what it made.
	CreateAll(ctx context.Context, defs []meta.Definition) (created []bool, err error)
	RemoveAll(ctx context.Context, defs []meta.Definition) error
	DeleteStream(ctx context.Context, tenant, namespace, name string) error
	DeleteCache(ctx context.Context, tenant, namespace, name string) error
	// What an operator asks for; each shard is reported.
	ReopenStream(ctx context.Context, tenant, namespace, name string, report func(shard int, state string, err error)) error
	ReopenCache(ctx context.Context, tenant, namespace, name string, report func(shard int, state string, err error)) error
	RetainStream(ctx context.Context, tenant, namespace, name string, report func(shard int, removed storage.RetentionResult, err error)) error
}

// Server is the handler of the HTTP listener. It is safe for concurrent use.
type Server struct {
	o       Options
	mux     *http.ServeMux
	backend atomic.Pointer[opened]
}

type opened struct {
	Backend
	verifier *auth.Verifier
}

// New makes a server that answers health and metrics; see Open for the rest.
func New(o Options) *Server {
	s := &Server{o: o, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /live", s.live)
	s.mux.HandleFunc("GET /ready", s.ready)
	s.mux.HandleFunc("GET /v1/system/live", s.live)
	s.mux.HandleFunc("GET /v1/system/ready", s.ready)
	s.mux.Handle("GET /metrics", o.Metrics)
	s.mux.HandleFunc("GET /v1/tenants/{t}/.well-known/jwks.json", s.jwks)

	s.mux.HandleFunc("GET /v1/tenants", s.cluster(listTenants))
	s.mux.HandleFunc("POST /v1/tenants", s.cluster(createTenant))
	s.mux.HandleFunc("GET /v1/tenants/{t}", s.cluster(getTenant))
	s.mux.HandleFunc("PATCH /v1/tenants/{t}", s.cluster(patchTenant))
	s.mux.HandleFunc("DELETE /v1/tenants/{t}", s.cluster(deleteTenant))

	const ns = "/v1/tenants/{t}/namespaces"
	s.mux.HandleFunc("GET "+ns, s.tenant(listNamespaces))
	s.mux.HandleFunc("POST "+ns, s.tenant(createNamespace))
	s.mux.HandleFunc("GET "+ns+"/{ns}", s.tenant(getNamespace))
	s.mux.HandleFunc("DELETE "+ns+"/{ns}", s.tenant(deleteNamespace))

	const st = ns + "/{ns}/streams"
	s.mux.HandleFunc("GET "+st, s.tenant(listStreams))
	s.mux.HandleFunc("POST "+st, s.tenant(createStream))
	s.mux.HandleFunc("GET "+st+"/{name}", s.tenant(getStream))
	s.mux.HandleFunc("PATCH "+st+"/{name}", s.tenant(patchStream))
	s.mux.HandleFunc("DELETE "+st+"/{name}", s.tenant(deleteStream))
	s.mux.HandleFunc("POST "+st+"/{name}/reopen", s.tenant(reopenStream))
	s.mux.HandleFunc("POST "+st+"/{name}/retain", s.tenant(retainStream))

	const ca = ns + "/{ns}/caches"
	s.mux.HandleFunc("GET "+ca, s.tenant(listCaches))
	s.mux.HandleFunc("POST "+ca, s.tenant(createCache))
	s.mux.HandleFunc("GET "+ca+"/{name}", s.tenant(getCache))
	s.mux.HandleFunc("PATCH "+ca+"/{name}", s.tenant(patchCache))
	s.mux.HandleFunc("DELETE "+ca+"/{name}", s.tenant(deleteCache))
	s.mux.HandleFunc("POST "+ca+"/{name}/reopen", s.tenant(reopenCache))

	s.mux.HandleFunc("POST "+ns+"/{ns}/resources", s.tenant(createResources))

	s.mux.HandleFunc("GET /v1/backup", s.cluster(backup))

	s.mux.HandleFunc("/", s.other)
	return s
}

// Open gives the server what /v1 works on. Until then /v1 answers 503.
func (s *Server) Open(b Backend) {
	s.backend.Store(&opened{Backend: b, verifier: auth.NewVerifier(auth.VerifierOptions{Keys: b.Keys, Audience: auth.AudienceAPI})})
}

// Close makes /v1 answer 503 again, for the time of a stop.
func (s *Server) Close() { s.backend.Store(nil) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The multiplexer would clean such a path and redirect; a name is refused by
	// name instead.
	for part := range strings.SplitSeq(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/") {
		name, err := url.PathUnescape(part)
		if err != nil || name == "." || name == ".." || name == "" && r.URL.Path != "/" || strings.ContainsAny(name, "/\x00") {
			s.fail(w, r, invalid("path %q holds the unusable name %q", r.URL.EscapedPath(), name))
			return
		}
	}
	r.Body = http.MaxBytesReader(w, r.Body, s.o.MaxBodyBytes)
	s.mux.ServeHTTP(w, r)
}

// other answers what no route takes: a path that is not there, or a method that the
// path does not have.
func (s *Server) other(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		probe := *r
		probe.Method = method
		if _, pattern := s.mux.Handler(&probe); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if allowed == nil {
		s.fail(w, r, &apiError{http.StatusNotFound, "not_found", "no such path: " + r.URL.Path})
		return
	}
	list := strings.Join(allowed, ", ")
	w.Header().Set("Allow", list)
	s.fail(w, r, &apiError{http.StatusMethodNotAllowed, "method_not_allowed", r.Method + " is not for " + r.URL.Path + ": use " + list})
}

func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusOK, map[string]string{"status": "live"})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	rd := s.o.Ready()
	status := http.StatusOK
	if !rd.Ready {
		status = http.StatusServiceUnavailable
	}
	reply(w, status, rd)
}

func (s *Server) jwks(w http.ResponseWriter, r *http.Request) {
	b := s.backend.Load()
	if b == nil {
		s.fail(w, r, notReady)
		return
	}
	raw, err := b.Keys.JWKS(r.PathValue("t"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "public, max-age=3600")
	w.WriteHeader(http.StatusOK)
	// The client is gone if this fails.
	_, err = w.Write(raw)
	s.gone(r, err)
}

func reply(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		// Bodies are values of this package that always marshal.
		status, raw = http.StatusInternalServerError, []byte(`{"code":"internal","message":"answer cannot be written"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(raw, '\n')); err != nil {
		return
	}
}

func (s *Server) gone(r *http.Request, err error) {
	if err != nil {
		s.o.Log.Debug("client left before the answer", "path", r.URL.Path, "error", err)
	}
}
