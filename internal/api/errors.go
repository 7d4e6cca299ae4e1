package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

// apiError is an answer that is not 2xx.
type apiError struct {
	status  int
	code    string
	message string
}

func (e *apiError) Error() string { return e.message }

var notReady = &apiError{http.StatusServiceUnavailable, "not_ready", "the broker is not ready to manage anything; /ready says why"}

func invalid(format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, wire.CodeInvalidRequest.String(), fmt.Sprintf(format, args...)}
}

func unauthenticated(message string) *apiError {
	return &apiError{http.StatusUnauthorized, wire.CodeUnauthenticated.String(), message}
}

func forbidden(action auth.Action, object auth.Object) *apiError {
	return &apiError{http.StatusForbidden, wire.CodeForbidden.String(), fmt.Sprintf("needs %s on %s", action, object)}
}

func conflict(code, message string) *apiError {
	return &apiError{http.StatusConflict, code, message}
}

// itemError is an error about one item of a request.
type itemError struct {
	item string // "streams[3]"
	err  error
}

func (e *itemError) Error() string { return e.item + ": " + e.err.Error() }

// errorBody is the JSON of every answer that is not 2xx.
type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// diskFull says where there is no room, as far as that is known.
func diskFull(err error) *apiError {
	found, where := "", "the data directory"
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		found, where = fmt.Sprintf(" (%v)", p), filepath.Dir(p.Path)
	}
	return &apiError{http.StatusInsufficientStorage, wire.ReasonDiskFull,
		fmt.Sprintf("not done: the broker's disk is full%s; make room on the file system of %s, or raise its quota, and try again", found, where)}
}

// wrongKind says which field cannot hold what it was given; a body that is no object has
// none.
func wrongKind(kind *json.UnmarshalTypeError) *apiError {
	given := "a " + kind.Value
	switch what, figure, isFigure := strings.Cut(kind.Value, " "); {
	case isFigure:
		given = "the " + what + " " + figure
	case what == "array", what == "object":
		given = "an " + what
	}
	if kind.Field == "" {
		return invalid("a JSON object is needed, not %s", given)
	}
	return invalid("field %s cannot be %s", kind.Field, given)
}

func isDiskFull(err error) bool {
	return errors.Is(err, storage.ErrDiskFull) || vfs.OutOfSpace(err)
}

// answerOf maps what the layers below report. What is not listed is ours to
// explain, so it is logged and answered as internal.
func answerOf(err error) (e *apiError, known bool) {
	if item, ok := errors.AsType[*itemError](err); ok {
		e, known = answerOf(item.err)
		return &apiError{e.status, e.code, item.item + ": " + e.message}, known
	}
	var (
		api      *apiError
		exists   *meta.ExistsError
		bad      *meta.InvalidError
		fixed    *meta.FixedError
		missing  *meta.NotFoundError
		tooLarge *http.MaxBytesError
		syntax   *json.SyntaxError
		kind     *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &api):
		return api, true
	case errors.As(err, &exists):
		return conflict("already_exists", exists.Error()), true
	case errors.As(err, &fixed):
		return conflict("fixed", fixed.Error()), true
	case errors.As(err, &bad):
		return invalid("%s", bad.Error()), true
	case errors.As(err, &missing):
		return &apiError{http.StatusNotFound, wire.CodeNotFound.String(), missing.Error()}, true
	case errors.As(err, &tooLarge):
		return &apiError{http.StatusRequestEntityTooLarge, wire.CodeLimitExceeded.String(), fmt.Sprintf("body is over %d bytes", tooLarge.Limit)}, true
	case errors.As(err, &syntax):
		return invalid("body is not JSON: %v at byte %d", syntax, syntax.Offset), true
	case errors.As(err, &kind):
		return wrongKind(kind), true
	case errors.Is(err, meta.ErrTooLarge):
		return &apiError{http.StatusRequestEntityTooLarge, wire.CodeLimitExceeded.String(), err.Error()}, true
	case errors.Is(err, ErrBackupRuns):
		return conflict("conflict", err.Error()), true
	case errors.Is(err, ErrNoBackup):
		return invalid("%s", err.Error()), true
	case errors.Is(err, meta.ErrConflict):
		return conflict("conflict", "changed by another caller at the same time; try again"), true
	case errors.Is(err, meta.ErrUnknownOutcome):
		return &apiError{http.StatusGatewayTimeout, "outcome_unknown", "it may have been done; look before trying again"}, true
	case isDiskFull(err):
		return diskFull(err), true
	case errors.Is(err, meta.ErrUnavailable), errors.Is(err, meta.ErrClosed):
		return &apiError{http.StatusServiceUnavailable, "not_ready", err.Error()}, true
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &apiError{http.StatusServiceUnavailable, "not_ready", "the request was given up"}, true
	}
	if f := broker.Failure(err); f.Code != wire.CodeInternal {
		return &apiError{f.Code.HTTPStatus(), f.Code.String(), f.Message}, true
	}
	return &apiError{http.StatusInternalServerError, wire.CodeInternal.String(), "internal error; the broker's log says more"}, false
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e, known := answerOf(err)
	if !known {
		s.o.Log.Error("http request", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	switch e.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	reply(w, e.status, errorBody{e.code, e.message})
}
