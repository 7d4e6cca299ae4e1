package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/strictjson"
	"github.com/felixlog/felix/wire"
)

// request is one authenticated call.
type request struct {
	*opened
	http   *http.Request
	caller *auth.Principal
}

// answer is a success; a nil body with 204. A body that is a streamed writes itself.
type answer struct {
	status int
	body   any
}

// streamed writes an answer that is too large for the memory, its header included.
type streamed func(http.ResponseWriter)

type handler func(*request) (answer, error)

// tenant wraps a handler of a path with {t}: the token must be one of that tenant.
func (s *Server) tenant(h handler) http.HandlerFunc {
	return s.wrap(h, func(r *http.Request, _ string) string { return r.PathValue("t") })
}

// cluster wraps a handler for whoever manages tenants: the token is one of its
// own tenant, whatever the path names.
func (s *Server) cluster(h handler) http.HandlerFunc {
	return s.wrap(h, func(_ *http.Request, token string) string { return claimedTenant(token) })
}

func (s *Server) wrap(h handler, tenantOf func(*http.Request, string) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := s.handle(h, tenantOf, r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		switch body := a.body.(type) {
		case nil:
			w.WriteHeader(a.status)
		case streamed:
			body(w)
		default:
			reply(w, a.status, body)
		}
	}
}

func (s *Server) handle(h handler, tenantOf func(*http.Request, string) string, r *http.Request) (answer, error) {
	b := s.backend.Load()
	if b == nil {
		return answer{}, notReady
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return answer{}, unauthenticated("needs the header Authorization: Bearer with a token of audience " + auth.AudienceAPI)
	}
	token = strings.TrimSpace(token)
	caller, err := b.verifier.Verify(tenantOf(r, token), token)
	if err != nil {
		if errors.Is(err, auth.ErrToken) {
			return answer{}, unauthenticated(err.Error())
		}
		return answer{}, err
	}
	for _, name := range []string{"t", "ns", "name"} {
		if v := r.PathValue(name); v != "" {
			if err := wire.ValidName(v); err != nil {
				return answer{}, invalid("%v", err)
			}
		}
	}
	return h(&request{opened: b, http: r, caller: caller})
}

// claimedTenant is the tenant a token says it is of, unverified: it only picks
// the keys the verifier tries.
func claimedTenant(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || len(token) > auth.MaxTokenBytes {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Tenant string `json:"tid"`
	}
	if json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Tenant
}

func (q *request) path(name string) string { return q.http.PathValue(name) }

// need refuses a caller without the permission.
func (q *request) need(action auth.Action, object auth.Object) error {
	if !q.caller.Allows(action, object) {
		return forbidden(action, object)
	}
	return nil
}

// body reads the request's JSON object into v. Unknown fields, fields given twice or
// spelled otherwise, a second value and an empty body are refused.
func (q *request) body(v any) error {
	raw, err := io.ReadAll(q.http.Body) // which is bounded
	if err != nil {
		return err
	}
	if err := decode(raw, v); err != nil {
		return err
	}
	if err := strictjson.Fields(raw); err != nil {
		return invalid("%s", err)
	}
	return nil
}

func decode(raw []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		var api *apiError
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return invalid("body ends early: a JSON object is needed")
		case errors.As(err, &api):
			return api
		case strings.HasPrefix(err.Error(), "json: unknown field "):
			return invalid("unknown field %s", strings.TrimPrefix(err.Error(), "json: unknown field "))
		}
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("body holds more than one JSON value")
	}
	if string(bytes.TrimSpace(raw)) == "null" { // which decodes to whatever is there
		return invalid("a JSON object is needed, not null")
	}
	return nil
}

// page reads limit and cursor.
func (q *request) page() (cursor string, limit int, err error) {
	v := q.http.URL.Query()
	if raw := v.Get("limit"); raw != "" || v.Has("limit") {
		limit, err = strconv.Atoi(raw)
		if err != nil || limit < 1 || limit > meta.MaxListLimit {
			return "", 0, invalid("limit %q is not 1 to %d", raw, meta.MaxListLimit)
		}
	}
	if raw := v.Get("cursor"); raw != "" {
		name, err := base64.RawURLEncoding.DecodeString(raw)
		if err != nil || wire.ValidName(string(name)) != nil {
			return "", 0, invalid("cursor %q is not one this listing gave", raw)
		}
		cursor = string(name)
	}
	return cursor, limit, nil
}

// listing is the body of every list.
type listing[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// list pages through fetch, leaving out what the caller may not manage. A page
// may therefore be shorter than the limit, or empty, and still have a next one.
func list[T, B any](q *request, fetch func(cursor string, limit int) ([]T, string, error), may func(*T) bool, view func(*T) B) (answer, error) {
	cursor, limit, err := q.page()
	if err != nil {
		return answer{}, err
	}
	items, next, err := fetch(cursor, limit)
	if err != nil {
		return answer{}, err
	}
	out := listing[B]{Items: []B{}}
	for i := range items {
		if may(&items[i]) {
			out.Items = append(out.Items, view(&items[i]))
		}
	}
	if next != "" {
		out.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(next))
	}
	return answer{http.StatusOK, out}, nil
}
