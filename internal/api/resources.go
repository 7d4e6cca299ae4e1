package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

// Resources is the answer to a creation of several, in the order of the request.
type Resources struct {
	Streams []StreamOutcome `json:"streams"`
	Caches  []CacheOutcome  `json:"caches"`
}

// What became of an item.
const (
	OutcomeCreated   = "created"
	OutcomeUnchanged = "unchanged" // it was there with the same settings
)

// StreamOutcome is a stream of a creation of several.
type StreamOutcome struct {
	Stream
	Outcome string `json:"outcome"`
}

// CacheOutcome is a cache of a creation of several.
type CacheOutcome struct {
	Cache
	Outcome string `json:"outcome"`
}

// resourcesBody is a creation of several. Its items are read one by one, so that what is
// wrong with one names it.
type resourcesBody struct {
	Streams []json.RawMessage `json:"streams"`
	Caches  []json.RawMessage `json:"caches"`
}

// creation is the body of a creation of one stream or cache.
type creation interface {
	define(q *request) (meta.Definition, error)
}

func (q *request) createOne(b creation) (answer, error) {
	if err := q.body(b); err != nil {
		return answer{}, err
	}
	d, err := b.define(q)
	if err != nil {
		return answer{}, err
	}
	created, err := meta.One(q.create([]meta.Definition{d}, isDiskFull))
	if err != nil {
		return answer{}, err
	}
	if !created {
		return answer{}, conflict("already_exists", d.String()+" exists with the same settings")
	}
	if d.Stream != nil {
		return answer{http.StatusCreated, viewStream(d.Stream)}, nil
	}
	return answer{http.StatusCreated, viewCache(d.Cache)}, nil
}

// createResources makes streams and caches of a namespace, all of them or none.
func createResources(q *request) (answer, error) {
	var b resourcesBody
	if err := q.body(&b); err != nil {
		return answer{}, err
	}
	n := len(b.Streams) + len(b.Caches)
	if n == 0 || n > meta.MaxCreateAll {
		return answer{}, invalid("%d items in streams and caches: at least 1 and at most %d are created at once", n, meta.MaxCreateAll)
	}
	out, status, err := q.createSeveral(&b)
	if item, ok := errors.AsType[*meta.ItemError](err); ok {
		field, i := "streams", item.Index
		if i >= len(b.Streams) {
			field, i = "caches", i-len(b.Streams)
		}
		err = &itemError{fmt.Sprintf("%s[%d]", field, i), item.Err}
	}
	if err != nil {
		return answer{}, err
	}
	return answer{status, out}, nil
}

func (q *request) createSeveral(b *resourcesBody) (*Resources, int, error) {
	defs := make([]meta.Definition, 0, len(b.Streams)+len(b.Caches))
	add := func(raw json.RawMessage, item creation) error {
		err := decode(raw, item)
		if err == nil {
			var d meta.Definition
			if d, err = item.define(q); err == nil {
				defs = append(defs, d)
				return nil
			}
		}
		return &meta.ItemError{Index: len(defs), Err: err}
	}
	for _, raw := range b.Streams {
		if err := add(raw, new(streamBody)); err != nil {
			return nil, 0, err
		}
	}
	for _, raw := range b.Caches {
		if err := add(raw, new(cacheBody)); err != nil {
			return nil, 0, err
		}
	}
	created, err := q.create(defs, outOfService)
	if err != nil {
		return nil, 0, err
	}
	out, status := &Resources{Streams: []StreamOutcome{}, Caches: []CacheOutcome{}}, http.StatusOK
	for i, d := range defs {
		outcome := OutcomeUnchanged
		if created[i] {
			outcome, status = OutcomeCreated, http.StatusCreated
		}
		if d.Stream != nil {
			out.Streams = append(out.Streams, StreamOutcome{viewStream(d.Stream), outcome})
		} else {
			out.Caches = append(out.Caches, CacheOutcome{viewCache(d.Cache), outcome})
		}
	}
	return out, status, nil
}

// outOfService says that a shard could not be made, which its removal by another, a stop
// of the broker and the end of the request are not.
func outOfService(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	code := broker.Failure(err).Code
	return code != wire.CodeNotFound && code != wire.CodeDraining
}

// create makes what is defined, all of it or nothing, and takes it back when a shard of it
// could not be made for a reason that is one to withdraw: it is out of service, and of
// what was asked for, that is missing. What is made and could not be waited for stays, for
// others may have written to it by then, and is not said to be undone.
func (q *request) create(defs []meta.Definition, withdraw func(error) bool) (created []bool, err error) {
	created, err = q.Streams.CreateAll(q.http.Context(), defs)
	if err != nil {
		if slices.Contains(created, true) {
			err = unawaited(err)
		}
		return nil, err
	}
	var made []meta.Definition
	var failed *meta.ItemError
	for i, d := range defs {
		if !created[i] {
			continue
		}
		made = append(made, d)
		if failed == nil {
			if err := q.unmade(d, withdraw); err != nil {
				failed = &meta.ItemError{Index: i, Err: err}
			}
		}
	}
	if failed == nil {
		return created, nil
	}
	if err := q.Streams.RemoveAll(q.http.Context(), made); err != nil {
		failed.Err = &apiError{http.StatusGatewayTimeout, "outcome_unknown",
			fmt.Sprintf("shards could not be made (%v) and what was made could not be taken back (%v): look, and delete or reopen what is there", failed.Err, err)}
	}
	return nil, failed
}

// unawaited is the answer when all are made and the waiting for one of them ended early.
func unawaited(err error) error {
	cause := err
	item, ok := errors.AsType[*meta.ItemError](err)
	if ok {
		cause = item.Err
	}
	said, _ := answerOf(cause)
	err = &apiError{http.StatusGatewayTimeout, "outcome_unknown",
		"made, with all that was asked for, and not known to be served yet (" + said.message + "): look before trying again"}
	if ok {
		err = &meta.ItemError{Index: item.Index, Err: err}
	}
	return err
}

// unmade is why a shard of what was just made is out of service, after another attempt;
// nil if none is for such a reason.
func (q *request) unmade(d meta.Definition, reason func(error) bool) (found error) {
	if !d.Durable() {
		return nil
	}
	reopen := q.Streams.ReopenStream
	if d.Cache != nil {
		reopen = q.Streams.ReopenCache
	}
	n := d.FullName()
	err := reopen(q.http.Context(), n.Tenant, n.Namespace, n.Name, func(_ int, _ string, err error) {
		if found == nil && reason(err) {
			found = err
		}
	})
	if err != nil {
		return nil // it was made, and is there or was removed since
	}
	return found
}
