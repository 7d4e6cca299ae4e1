package meta

import (
	"fmt"
	"regexp"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of the model.
const (
	// MaxShards bounds the shards of one stream or cache.
	MaxShards = 4096
	// MaxReplicationFactor bounds the replicas of one shard.
	MaxReplicationFactor = 7
	// MaxDisplayNameBytes bounds display names.
	MaxDisplayNameBytes = 256
	// MaxRecordBytesLimit bounds Stream.MaxRecordBytes (docs/formats: a record's payload).
	MaxRecordBytesLimit = 64 << 20
	// MaxQuota bounds the fields of a Quota, per second.
	MaxQuota = 1 << 40
	// DefaultMaxRecordBytes is what a zero Stream.MaxRecordBytes means.
	DefaultMaxRecordBytes = 8 << 20
)

// Kind is how the records of a stream are used.
type Kind string

// Kinds of streams.
const (
	KindStream Kind = "stream"
	KindQueue  Kind = "queue"
)

// Consistency is when a write is acknowledged on more than one replica.
type Consistency string

// Consistency levels.
const (
	ConsistencyLeader Consistency = "leader" // by the leader alone
	ConsistencyQuorum Consistency = "quorum" // by a majority of the replica set
)

// Delivery is recorded and not enforced.
type Delivery string

// Delivery promises.
const (
	AtLeastOnce Delivery = "at_least_once"
	AtMostOnce  Delivery = "at_most_once"
)

// FsyncMode is when a log flushes; empty is the broker's default.
type FsyncMode string

// Fsync modes.
const (
	FsyncDefault  FsyncMode = ""
	FsyncNone     FsyncMode = "none"
	FsyncPeriodic FsyncMode = "periodic"
	FsyncOnCommit FsyncMode = "on_commit"
)

// Overflow is what an in-memory stream does with a subscriber that is behind.
type Overflow string

// Overflow policies.
const (
	OverflowBlock   Overflow = "block"
	OverflowDropNew Overflow = "drop_new"
	OverflowDropOld Overflow = "drop_old"
)

// Routing is how a key finds its shard.
type Routing string

// Routing functions.
const (
	RoutingModulo   Routing = "modulo"
	RoutingJumpHash Routing = "jump_hash"
)

// OnFull is what a cache does at its bound.
type OnFull string

// OnFull policies.
const (
	OnFullEvict  OnFull = "evict"
	OnFullRefuse OnFull = "refuse"
)

// Retention bounds a stream; zero fields are the broker's own bound.
type Retention struct {
	MaxAge   time.Duration `json:"max_age_ns,omitempty"`
	MaxBytes int64         `json:"max_bytes,omitempty"`
}

// Tenant is the top of the naming tree.
type Tenant struct {
	ID          string `json:"id"`
	DisplayName string `json:"display_name,omitempty"`
	Quota       Quota  `json:"quota,omitzero"`
	// Deleting: what is below is being removed; nothing new is made there.
	Deleting bool `json:"deleting,omitempty"`
}

// NoQuota in a Quota is no bound, whatever the broker's own is.
const NoQuota = -1

// Quota bounds what a tenant writes a second on each broker. A zero field is the broker's
// own bound, NoQuota none.
type Quota struct {
	BytesPerSecond   int64 `json:"bytes_per_second,omitempty"`   // of payloads
	RecordsPerSecond int64 `json:"records_per_second,omitempty"` // also cache writes and counter additions
}

// Or is a field's value where its zero means the broker's own; 0 for no bound.
func (Quota) Or(own, broker int64) int64 {
	switch own {
	case 0:
		return broker
	case NoQuota:
		return 0
	}
	return own
}

// Namespace groups streams and caches of a tenant.
type Namespace struct {
	Tenant      string `json:"tenant"`
	Name        string `json:"name"`
	DisplayName string `json:"display_name,omitempty"`
	Deleting    bool   `json:"deleting,omitempty"`
}

// Stream is the definition of a stream or queue.
type Stream struct {
	Tenant            string      `json:"tenant"`
	Namespace         string      `json:"namespace"`
	Name              string      `json:"name"`
	Kind              Kind        `json:"kind"`
	Shards            uint32      `json:"shards"`
	ReplicationFactor uint32      `json:"replication_factor"`
	Consistency       Consistency `json:"consistency"`
	Delivery          Delivery    `json:"delivery"`
	Durable           bool        `json:"durable"`
	Fsync             FsyncMode   `json:"fsync,omitempty"`
	Retention         Retention   `json:"retention,omitzero"`
	Overflow          Overflow    `json:"overflow,omitempty"` // in-memory streams
	Routing           Routing     `json:"routing"`
	MaxRecordBytes    int64       `json:"max_record_bytes,omitempty"` // zero: DefaultMaxRecordBytes
	StorePublisher    bool        `json:"store_publisher,omitempty"`
	Region            string      `json:"region,omitempty"`
	// Incarnation tells this stream from others that had or will have its name. Random,
	// never zero, given by CreateStream.
	Incarnation uint64 `json:"incarnation"`
}

// Cache is the definition of a cache.
type Cache struct {
	Tenant            string      `json:"tenant"`
	Namespace         string      `json:"namespace"`
	Name              string      `json:"name"`
	DisplayName       string      `json:"display_name,omitempty"`
	Shards            uint32      `json:"shards"`
	ReplicationFactor uint32      `json:"replication_factor"`
	Consistency       Consistency `json:"consistency"`
	Durable           bool        `json:"durable"`
	Fsync             FsyncMode   `json:"fsync,omitempty"`
	MaxBytes          int64       `json:"max_bytes,omitempty"` // zero: unbounded
	MaxKeys           int64       `json:"max_keys,omitempty"`  // zero: unbounded
	OnFull            OnFull      `json:"on_full,omitempty"`
	Routing           Routing     `json:"routing"`
	Incarnation       uint64      `json:"incarnation"`
}

// Name is the full name of a stream or cache.
type Name struct{ Tenant, Namespace, Name string }

func (n Name) String() string { return n.Tenant + "/" + n.Namespace + "/" + n.Name }

// FullName is the stream's name with its parents.
func (s *Stream) FullName() Name { return Name{s.Tenant, s.Namespace, s.Name} }

// FullName is the cache's name with its parents.
func (c *Cache) FullName() Name { return Name{c.Tenant, c.Namespace, c.Name} }

// RecordLimit is MaxRecordBytes with its default applied, in bytes.
func (s *Stream) RecordLimit() int64 {
	if s.MaxRecordBytes == 0 {
		return DefaultMaxRecordBytes
	}
	return s.MaxRecordBytes
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func checkName(object, field, name string) error {
	if namePattern.MatchString(name) {
		return nil
	}
	if len(name) > 140 {
		name = name[:140] + "..."
	}
	return &InvalidError{Object: object, Field: field, Detail: fmt.Sprintf("%q is not a name: 1 to 128 of letters, digits, '.', '_' and '-', the first a letter or digit", name)}
}

// Validate checks a tenant.
func (t *Tenant) Validate() error {
	if err := checkName("tenant", "id", t.ID); err != nil {
		return err
	}
	for _, q := range []struct {
		field string
		v     int64
	}{{"quota.bytes_per_second", t.Quota.BytesPerSecond}, {"quota.records_per_second", t.Quota.RecordsPerSecond}} {
		if q.v < NoQuota || q.v > MaxQuota {
			return &InvalidError{Object: "tenant " + t.ID, Field: q.field, Detail: fmt.Sprintf("is %d, at most %d", q.v, int64(MaxQuota))}
		}
	}
	return checkDisplayName("tenant "+t.ID, t.DisplayName)
}

// Validate checks a namespace.
func (n *Namespace) Validate() error {
	if err := checkName("namespace", "tenant", n.Tenant); err != nil {
		return err
	}
	if err := checkName("namespace", "name", n.Name); err != nil {
		return err
	}
	return checkDisplayName("namespace "+n.Tenant+"/"+n.Name, n.DisplayName)
}

func checkDisplayName(object, name string) error {
	if len(name) > MaxDisplayNameBytes {
		return &InvalidError{Object: object, Field: "display_name", Detail: fmt.Sprintf("has %d bytes, at most %d", len(name), MaxDisplayNameBytes)}
	}
	for i, r := range name {
		// They would reach terminals and logs; the last two break lines too.
		if unicode.IsControl(r) || r == utf8.RuneError || r == '\u2028' || r == '\u2029' {
			return &InvalidError{Object: object, Field: "display_name", Detail: fmt.Sprintf("%q has an unusable character at byte %d: no control characters, nothing that is not UTF-8", name, i)}
		}
	}
	return nil
}

// WithDefaults is the stream with every empty field set: kind stream, one shard, one
// replica, leader, at_least_once, modulo, and in memory drop_new, as the wire protocol has it.
func (s Stream) WithDefaults() Stream {
	def(&s.Kind, KindStream)
	def(&s.Shards, 1)
	def(&s.ReplicationFactor, 1)
	def(&s.Consistency, ConsistencyLeader)
	def(&s.Delivery, AtLeastOnce)
	def(&s.Routing, RoutingModulo)
	if s.Durable {
		def(&s.Overflow, OverflowBlock) // nobody overflows; it is what definitions have always held
	}
	def(&s.Overflow, OverflowDropNew)
	return s
}

// WithDefaults is the cache with every empty field set.
func (c Cache) WithDefaults() Cache {
	def(&c.Shards, 1)
	def(&c.ReplicationFactor, 1)
	def(&c.Consistency, ConsistencyLeader)
	def(&c.Routing, RoutingModulo)
	def(&c.OnFull, OnFullEvict)
	return c
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate checks a stream that has its defaults.
func (s *Stream) Validate() error {
	object := "stream " + s.FullName().String()
	if err := checkFullName("stream", s.FullName()); err != nil {
		return err
	}
	switch {
	case s.Kind == KindQueue && !s.Durable:
		return &InvalidError{Object: object, Field: "durable", Detail: "must be true for a queue"}
	case s.Retention.MaxAge < 0:
		return &InvalidError{Object: object, Field: "retention.max_age", Detail: "is negative"}
	case s.Retention.MaxBytes < 0:
		return &InvalidError{Object: object, Field: "retention.max_bytes", Detail: "is negative"}
	case s.MaxRecordBytes < 0 || s.MaxRecordBytes > MaxRecordBytesLimit:
		return &InvalidError{Object: object, Field: "max_record_bytes", Detail: fmt.Sprintf("is %d, at least 0 and at most %d", s.MaxRecordBytes, MaxRecordBytesLimit)}
	}
	return firstError(
		oneOf(object, "kind", s.Kind, KindStream, KindQueue),
		oneOf(object, "delivery", s.Delivery, AtLeastOnce, AtMostOnce),
		oneOf(object, "overflow", s.Overflow, OverflowBlock, OverflowDropNew, OverflowDropOld),
		checkReplication(object, s.Shards, s.ReplicationFactor, s.Consistency, s.Routing, s.Fsync),
	)
}

// Validate checks a cache that has its defaults.
func (c *Cache) Validate() error {
	object := "cache " + c.FullName().String()
	if err := checkFullName("cache", c.FullName()); err != nil {
		return err
	}
	switch {
	case c.MaxBytes < 0:
		return &InvalidError{Object: object, Field: "max_bytes", Detail: "is negative"}
	case c.MaxKeys < 0:
		return &InvalidError{Object: object, Field: "max_keys", Detail: "is negative"}
	}
	return firstError(
		checkDisplayName(object, c.DisplayName),
		oneOf(object, "on_full", c.OnFull, OnFullEvict, OnFullRefuse),
		checkReplication(object, c.Shards, c.ReplicationFactor, c.Consistency, c.Routing, c.Fsync),
	)
}

func checkFullName(object string, n Name) error {
	return firstError(
		checkName(object, "tenant", n.Tenant),
		checkName(object, "namespace", n.Namespace),
		checkName(object, "name", n.Name),
	)
}

func checkReplication(object string, shards, factor uint32, c Consistency, r Routing, f FsyncMode) error {
	if shards < 1 || shards > MaxShards {
		return &InvalidError{Object: object, Field: "shards", Detail: fmt.Sprintf("is %d, at least 1 and at most %d", shards, MaxShards)}
	}
	if factor < 1 || factor > MaxReplicationFactor {
		return &InvalidError{Object: object, Field: "replication_factor", Detail: fmt.Sprintf("is %d, at least 1 and at most %d", factor, MaxReplicationFactor)}
	}
	return firstError(
		oneOf(object, "consistency", c, ConsistencyLeader, ConsistencyQuorum),
		oneOf(object, "routing", r, RoutingModulo, RoutingJumpHash),
		oneOf(object, "fsync", f, FsyncDefault, FsyncNone, FsyncPeriodic, FsyncOnCommit),
	)
}

func oneOf[T ~string](object, field string, v T, allowed ...T) error {
	for _, a := range allowed {
		if v == a {
			return nil
		}
	}
	return &InvalidError{Object: object, Field: field, Detail: fmt.Sprintf("is %q, not one of %q", v, allowed)}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
