package api

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

// Stream is a stream as the API spells it, in requests and in answers.
type Stream struct {
	TenantID          string    `json:"tenant_id,omitempty"`
	Namespace         string    `json:"namespace,omitempty"`
	Stream            string    `json:"stream"`
	Kind              string    `json:"kind"`
	Shards            uint32    `json:"shards"`
	ReplicationFactor uint32    `json:"replication_factor"`
	Retention         Retention `json:"retention"`
	Consistency       string    `json:"consistency"`
	Delivery          string    `json:"delivery"`
	Durable           bool      `json:"durable"`
	Region            string    `json:"region,omitempty"`
	Routing           string    `json:"routing,omitempty"`
	// Ours: the broker's default when empty or zero.
	Fsync          string `json:"fsync,omitempty"`
	Overflow       string `json:"overflow,omitempty"`
	MaxRecordBytes int64  `json:"max_record_bytes,omitempty"`
	StorePublisher bool   `json:"store_publisher,omitempty"`
}

// Retention bounds a stream; null is the broker's own bound.
type Retention struct {
	MaxAgeSeconds *uint64 `json:"max_age_seconds"`
	MaxSizeBytes  *uint64 `json:"max_size_bytes"`
}

// maybe tells a field that is absent from one that is null.
type maybe[T any] struct {
	given bool
	value *T
}

func (m *maybe[T]) UnmarshalJSON(raw []byte) error {
	m.given = true
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	m.value = new(T)
	return json.Unmarshal(raw, m.value)
}

// streamBody is a create or a patch: every field may be missing.
type streamBody struct {
	TenantID          string         `json:"tenant_id"`
	Namespace         string         `json:"namespace"`
	Stream            string         `json:"stream"`
	Kind              maybe[string]  `json:"kind"`
	Shards            maybe[uint32]  `json:"shards"`
	ReplicationFactor maybe[uint32]  `json:"replication_factor"`
	Retention         *retentionBody `json:"retention"`
	Consistency       maybe[string]  `json:"consistency"`
	Delivery          maybe[string]  `json:"delivery"`
	Durable           maybe[bool]    `json:"durable"`
	Region            maybe[string]  `json:"region"`
	Routing           maybe[string]  `json:"routing"`
	Fsync             maybe[string]  `json:"fsync"`
	Overflow          maybe[string]  `json:"overflow"`
	MaxRecordBytes    maybe[int64]   `json:"max_record_bytes"`
	StorePublisher    maybe[bool]    `json:"store_publisher"`
}

type retentionBody struct {
	MaxAgeSeconds maybe[uint64] `json:"max_age_seconds"`
	MaxSizeBytes  maybe[uint64] `json:"max_size_bytes"`
}

// spelling maps the words of the API to the model's. Case does not matter, since
// both spellings are about.
type spelling struct{ api, model string }

var (
	kinds         = []spelling{{"Stream", string(meta.KindStream)}, {"Queue", string(meta.KindQueue)}}
	consistencies = []spelling{{"Leader", string(meta.ConsistencyLeader)}, {"Quorum", string(meta.ConsistencyQuorum)}}
	deliveries    = []spelling{{"AtLeastOnce", string(meta.AtLeastOnce)}, {"AtMostOnce", string(meta.AtMostOnce)}}
	routings      = []spelling{{"modulo", string(meta.RoutingModulo)}, {"jump_hash", string(meta.RoutingJumpHash)}}
	fsyncs        = []spelling{{"none", string(meta.FsyncNone)}, {"periodic", string(meta.FsyncPeriodic)}, {"on_commit", string(meta.FsyncOnCommit)}, {"", ""}}
	overflows     = []spelling{{"block", string(meta.OverflowBlock)}, {"drop_new", string(meta.OverflowDropNew)}, {"drop_old", string(meta.OverflowDropOld)}, {"", ""}}
)

func show[T ~string](words []spelling, v T) string {
	for _, w := range words {
		if w.model == string(v) {
			return w.api
		}
	}
	return string(v)
}

// choose puts the model's word for a given field into dst; absent leaves it.
func choose[T ~string](dst *T, field string, m maybe[string], words []spelling) error {
	if m.value == nil {
		return nil
	}
	names := make([]string, 0, len(words))
	for _, w := range words {
		if strings.EqualFold(w.api, *m.value) || w.model == *m.value {
			*dst = T(w.model)
			return nil
		}
		if w.api != "" {
			names = append(names, w.api)
		}
	}
	return invalid("%s %q is not one of %s", field, *m.value, strings.Join(names, ", "))
}

func take[T any](dst *T, m maybe[T]) {
	if m.value != nil {
		*dst = *m.value
	}
}

// fill puts what b gives into s.
func (b *streamBody) fill(s *meta.Stream) error {
	for _, err := range []error{
		choose(&s.Kind, "kind", b.Kind, kinds),
		choose(&s.Consistency, "consistency", b.Consistency, consistencies),
		choose(&s.Delivery, "delivery", b.Delivery, deliveries),
		choose(&s.Routing, "routing", b.Routing, routings),
		choose(&s.Fsync, "fsync", b.Fsync, fsyncs),
		choose(&s.Overflow, "overflow", b.Overflow, overflows),
	} {
		if err != nil {
			return err
		}
	}
	take(&s.Shards, b.Shards)
	take(&s.ReplicationFactor, b.ReplicationFactor)
	take(&s.Durable, b.Durable)
	take(&s.Region, b.Region)
	take(&s.MaxRecordBytes, b.MaxRecordBytes)
	take(&s.StorePublisher, b.StorePublisher)
	if b.Shards.value != nil && *b.Shards.value == 0 {
		return invalid("shards 0: a stream has at least 1")
	}
	if b.ReplicationFactor.value != nil && *b.ReplicationFactor.value == 0 {
		return invalid("replication_factor 0: a shard has at least 1 replica")
	}
	if b.Region.value != nil && *b.Region.value == "" {
		return invalid("region is empty: leave it out or name one")
	}
	if r := b.Retention; r != nil {
		if m := r.MaxAgeSeconds; m.given {
			if err := bound("retention.max_age_seconds", m.value, math.MaxInt64/uint64(time.Second)); err != nil {
				return err
			}
			s.Retention.MaxAge = 0
			if m.value != nil {
				s.Retention.MaxAge = time.Duration(*m.value) * time.Second
			}
		}
		if m := r.MaxSizeBytes; m.given {
			if err := bound("retention.max_size_bytes", m.value, math.MaxInt64); err != nil {
				return err
			}
			s.Retention.MaxBytes = 0
			if m.value != nil {
				s.Retention.MaxBytes = int64(*m.value)
			}
		}
	}
	return nil
}

// agree refuses settings given that mean nothing of the stream they come to: to take them
// would say that they hold.
func (b *streamBody) agree(s *meta.Stream) error {
	switch given := b.Fsync.given || b.Retention != nil; {
	case s.Durable && b.Overflow.value != nil && *b.Overflow.value != "":
		return invalid("overflow and durable exclude each other: a slow reader of a durable stream falls back to disk")
	case s.Durable || !given:
		return nil
	case s.Fsync != meta.FsyncDefault:
		return invalid("fsync %q needs durable: an in-memory stream has no disk", s.Fsync)
	case s.Retention != meta.Retention{}:
		return invalid("retention needs durable: an in-memory stream keeps no records")
	}
	return nil
}

func bound(field string, v *uint64, most uint64) error {
	switch {
	case v == nil:
		return nil
	case *v == 0:
		return invalid("%s 0 would keep nothing: null means the broker's own bound", field)
	case *v > most:
		return invalid("%s %d is over the most, %d", field, *v, most)
	}
	return nil
}

func viewStream(s *meta.Stream) Stream {
	v := Stream{
		TenantID: s.Tenant, Namespace: s.Namespace, Stream: s.Name,
		Kind: show(kinds, s.Kind), Shards: s.Shards, ReplicationFactor: s.ReplicationFactor,
		Consistency: show(consistencies, s.Consistency), Delivery: show(deliveries, s.Delivery),
		Durable: s.Durable, Region: s.Region, Routing: show(routings, s.Routing),
		Fsync:          show(fsyncs, s.Fsync),
		MaxRecordBytes: s.MaxRecordBytes, StorePublisher: s.StorePublisher,
	}
	if !s.Durable {
		v.Overflow = show(overflows, s.Overflow)
	}
	if s.Retention.MaxAge > 0 {
		n := uint64(s.Retention.MaxAge / time.Second)
		v.Retention.MaxAgeSeconds = &n
	}
	if s.Retention.MaxBytes > 0 {
		n := uint64(s.Retention.MaxBytes)
		v.Retention.MaxSizeBytes = &n
	}
	return v
}

// sameScope refuses a body that names another tenant or namespace than the path.
func (q *request) sameScope(tenant, namespace string) error {
	if err := q.sameTenant(tenant); err != nil {
		return err
	}
	if namespace != "" && namespace != q.path("ns") {
		return invalid("namespace %q is not the namespace of the path", namespace)
	}
	return nil
}

func (q *request) streamName() meta.Name {
	return meta.Name{Tenant: q.path("t"), Namespace: q.path("ns"), Name: q.path("name")}
}

func (q *request) manageStream(name string) error {
	return q.need(auth.StreamManage, auth.StreamObject(q.path("t"), q.path("ns"), name))
}

func listStreams(q *request) (answer, error) {
	t, ns := q.path("t"), q.path("ns")
	return list(q, func(cursor string, limit int) ([]meta.Stream, string, error) {
		if _, err := q.Catalog.GetNamespace(q.http.Context(), t, ns); err != nil {
			return nil, "", err
		}
		return q.Catalog.ListStreams(q.http.Context(), t, ns, cursor, limit)
	}, func(s *meta.Stream) bool {
		return q.caller.Allows(auth.StreamManage, auth.StreamObject(t, ns, s.Name))
	}, viewStream)
}

func createStream(q *request) (answer, error) { return q.createOne(new(streamBody)) }

// define is the stream that b asks for, if the caller may make it.
func (b *streamBody) define(q *request) (meta.Definition, error) {
	if err := q.sameScope(b.TenantID, b.Namespace); err != nil {
		return meta.Definition{}, err
	}
	if err := wire.ValidName(b.Stream); err != nil {
		return meta.Definition{}, invalid("stream: %v", err)
	}
	if err := q.manageStream(b.Stream); err != nil {
		return meta.Definition{}, err
	}
	s := meta.Stream{Tenant: q.path("t"), Namespace: q.path("ns"), Name: b.Stream}
	if err := b.fill(&s); err != nil {
		return meta.Definition{}, err
	}
	if err := b.agree(&s); err != nil {
		return meta.Definition{}, err
	}
	if s.MaxRecordBytes == 0 {
		s.MaxRecordBytes = q.RecordBytes
	}
	if err := q.fits(&s); err != nil {
		return meta.Definition{}, err
	}
	return meta.Definition{Stream: &s}, nil
}

// fits refuses records that no frame of this broker could carry.
func (q *request) fits(s *meta.Stream) error {
	if q.MostRecordBytes > 0 && s.MaxRecordBytes > q.MostRecordBytes {
		return invalid("max_record_bytes %d does not fit the broker's frames: at most %d, or raise limits.frame_bytes", s.MaxRecordBytes, q.MostRecordBytes)
	}
	return nil
}

func getStream(q *request) (answer, error) {
	if err := q.manageStream(q.path("name")); err != nil {
		return answer{}, err
	}
	s, err := q.Catalog.GetStream(q.http.Context(), q.streamName())
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewStream(s)}, nil
}

func patchStream(q *request) (answer, error) {
	if err := q.manageStream(q.path("name")); err != nil {
		return answer{}, err
	}
	var b streamBody
	if err := q.body(&b); err != nil {
		return answer{}, err
	}
	if err := q.sameScope(b.TenantID, b.Namespace); err != nil {
		return answer{}, err
	}
	if b.Stream != "" && b.Stream != q.path("name") {
		return answer{}, invalid("stream %q is not the stream of the path: names cannot change", b.Stream)
	}
	s, err := q.Catalog.UpdateStream(q.http.Context(), q.streamName(), func(s *meta.Stream) error {
		if err := b.fill(s); err != nil {
			return err
		}
		if err := b.agree(s); err != nil {
			return err
		}
		return q.fits(s)
	})
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewStream(s)}, nil
}

func deleteStream(q *request) (answer, error) {
	if err := q.manageStream(q.path("name")); err != nil {
		return answer{}, err
	}
	n := q.streamName()
	if err := q.Streams.DeleteStream(q.http.Context(), n.Tenant, n.Namespace, n.Name); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusNoContent}, nil
}
