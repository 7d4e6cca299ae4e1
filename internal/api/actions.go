package api

import (
	"context"
	"net/http"

	"github.com/felixlog/felix/storage"
)

// Shard is what an action of an operator did to one shard. Error says why it could not.
type Shard struct {
	Shard    int    `json:"shard"`
	State    string `json:"state,omitempty"`    // of a reopened one
	Head     uint64 `json:"head"`               // of one retention was applied to: its oldest offset
	Segments int    `json:"segments,omitempty"` // that retention removed
	Bytes    int64  `json:"bytes,omitempty"`
	Error    string `json:"error,omitempty"`
}

// Shards is the answer to an action.
type Shards struct {
	Shards []Shard `json:"shards"`
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reopenStream tries what is out of service of a stream again.
func reopenStream(q *request) (answer, error) {
	if err := q.manageStream(q.path("name")); err != nil {
		return answer{}, err
	}
	return q.reopen(q.Streams.ReopenStream)
}

func reopenCache(q *request) (answer, error) {
	if err := q.manageCache(q.path("name")); err != nil {
		return answer{}, err
	}
	return q.reopen(q.Streams.ReopenCache)
}

func (q *request) reopen(do func(ctx context.Context, tenant, namespace, name string, report func(int, string, error)) error) (answer, error) {
	n := q.streamName()
	out := Shards{Shards: []Shard{}}
	err := do(q.http.Context(), n.Tenant, n.Namespace, n.Name, func(i int, state string, err error) {
		out.Shards = append(out.Shards, Shard{Shard: i, State: state, Error: errorText(err)})
	})
	return answer{http.StatusOK, out}, err
}

// retainStream applies a stream's retention now.
func retainStream(q *request) (answer, error) {
	if err := q.manageStream(q.path("name")); err != nil {
		return answer{}, err
	}
	n := q.streamName()
	out := Shards{Shards: []Shard{}}
	err := q.Streams.RetainStream(q.http.Context(), n.Tenant, n.Namespace, n.Name, func(i int, r storage.RetentionResult, err error) {
		out.Shards = append(out.Shards, Shard{Shard: i, Head: uint64(r.Head), Segments: r.Segments, Bytes: r.Bytes, Error: errorText(err)})
	})
	return answer{http.StatusOK, out}, err
}
