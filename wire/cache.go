package wire

// CachePut stores a value under a key.
type CachePut struct {
	Tenant, Namespace, Cache string
	Key                      string
	Value                    []byte
	RequestID                uint64
	HasRequestID             bool
	// TTLMillis counts from arrival. It is written as null when unset.
	TTLMillis uint64
	HasTTL    bool
}

// Type is "cache_put".
func (*CachePut) Type() string { return "cache_put" }

func (m *CachePut) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.bytes("value", &m.Value)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
	c.u64Null("ttl_ms", &m.TTLMillis, &m.HasTTL)
}

// CacheGet reads the value of a key.
type CacheGet struct {
	Tenant, Namespace, Cache string
	Key                      string
	RequestID                uint64
	HasRequestID             bool
}

// Type is "cache_get".
func (*CacheGet) Type() string { return "cache_get" }

func (m *CacheGet) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
}

// CacheDelete removes a key; the answer holds what was removed.
type CacheDelete struct {
	Tenant, Namespace, Cache string
	Key                      string
	RequestID                uint64
	HasRequestID             bool
}

// Type is "cache_delete".
func (*CacheDelete) Type() string { return "cache_delete" }

func (m *CacheDelete) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
}

// CacheOK answers a put, and the group requests that only succeed.
type CacheOK struct {
	RequestID uint64
}

// Type is "cache_ok".
func (*CacheOK) Type() string { return "cache_ok" }

func (m *CacheOK) fields(c *codec) { c.u64("request_id", &m.RequestID) }

// CacheValue answers a get or delete. Without a value the field is null, never
// absent: other clients refuse the frame otherwise.
type CacheValue struct {
	Tenant, Namespace, Cache string
	Key                      string
	Value                    []byte
	HasValue                 bool
	RequestID                uint64
	HasRequestID             bool
	// Version is the offset of the put, on a hit, for a client that offered
	// FeatureCacheConditional.
	Version    uint64
	HasVersion bool
}

// Type is "cache_value".
func (*CacheValue) Type() string { return "cache_value" }

func (m *CacheValue) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.bytesNull("value", &m.Value, &m.HasValue)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
	c.u64Has("version", &m.Version, &m.HasVersion)
}

// CacheCondition is what must hold for a conditional put: the key is absent, or
// has this version.
type CacheCondition struct {
	Absent  bool
	Version uint64
}

// CachePutIf stores a value if the condition holds.
type CachePutIf struct {
	Tenant, Namespace, Cache string
	Key                      string
	Value                    []byte
	TTLMillis                uint64
	HasTTL                   bool
	Condition                CacheCondition
	RequestID                uint64
}

// Type is "cache_put_if".
func (*CachePutIf) Type() string { return "cache_put_if" }

func (m *CachePutIf) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.bytes("value", &m.Value)
	c.u64Has("ttl_ms", &m.TTLMillis, &m.HasTTL)
	c.condition("condition", &m.Condition)
	c.u64("request_id", &m.RequestID)
}

// CacheDeleteIf removes a key if it has this version.
type CacheDeleteIf struct {
	Tenant, Namespace, Cache string
	Key                      string
	Version                  uint64
	RequestID                uint64
}

// Type is "cache_delete_if".
func (*CacheDeleteIf) Type() string { return "cache_delete_if" }

func (m *CacheDeleteIf) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.u64("version", &m.Version)
	c.u64("request_id", &m.RequestID)
}

// CacheConditionResult answers the conditional requests. Version is that of
// the new value after an applied put, else of the present one, if any.
type CacheConditionResult struct {
	Applied    bool
	Version    uint64
	HasVersion bool
	RequestID  uint64
}

// Type is "cache_condition_result".
func (*CacheConditionResult) Type() string { return "cache_condition_result" }

func (m *CacheConditionResult) fields(c *codec) {
	c.boolean("applied", &m.Applied)
	c.u64Has("version", &m.Version, &m.HasVersion)
	c.u64("request_id", &m.RequestID)
}

// CacheWatch asks for the changes of a key, or of the keys of a shard that
// begin with a prefix. Exactly one of HasKey and HasPrefix is right.
type CacheWatch struct {
	Tenant, Namespace, Cache string
	Key                      string
	HasKey                   bool
	Prefix                   string
	HasPrefix                bool
	Shard                    uint32
	HasShard                 bool
	FromOffset               uint64
	HasFromOffset            bool
	Retained                 bool
	SubscriptionID           uint64
	HasSubscriptionID        bool
}

// Type is "cache_watch".
func (*CacheWatch) Type() string { return "cache_watch" }

func (m *CacheWatch) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.textHas("key", &m.Key, &m.HasKey)
	c.textHas("prefix", &m.Prefix, &m.HasPrefix)
	c.u32Has("shard", &m.Shard, &m.HasShard)
	c.u64Has("from_offset", &m.FromOffset, &m.HasFromOffset)
	c.boolDefault("retained", &m.Retained)
	c.u64Has("subscription_id", &m.SubscriptionID, &m.HasSubscriptionID)
}

// CacheWatchStarted answers a cache_watch. Live delivery starts at ResumeOffset.
type CacheWatchStarted struct {
	SubscriptionID, ResumeOffset uint64
	Resnapshot                   bool
	RetainedCount                uint64
	HasRetainedCount             bool
}

// Type is "cache_watch_started".
func (*CacheWatchStarted) Type() string { return "cache_watch_started" }

func (m *CacheWatchStarted) fields(c *codec) {
	c.u64("subscription_id", &m.SubscriptionID)
	c.u64("resume_offset", &m.ResumeOffset)
	c.boolAlways("resnapshot", &m.Resnapshot)
	c.u64Has("retained_count", &m.RetainedCount, &m.HasRetainedCount)
}

// CacheEvent is one change of a watched cache. Without a value the key was
// deleted.
type CacheEvent struct {
	Key      string
	Value    []byte
	HasValue bool
	Offset   uint64
	// ExpiresAtMillis is in milliseconds since 1970, 0 for never.
	ExpiresAtMillis uint64
}

// Type is "cache_event".
func (*CacheEvent) Type() string { return "cache_event" }

func (m *CacheEvent) fields(c *codec) {
	c.view("key", &m.Key)
	c.bytesHas("value", &m.Value, &m.HasValue)
	c.u64("offset", &m.Offset)
	c.u64Always("expires_at_millis", &m.ExpiresAtMillis)
}

// CacheWatchLagged ends a watch that was too slow.
type CacheWatchLagged struct {
	ResumeFrom uint64
}

// Type is "cache_watch_lagged".
func (*CacheWatchLagged) Type() string { return "cache_watch_lagged" }

func (m *CacheWatchLagged) fields(c *codec) { c.u64("resume_from", &m.ResumeFrom) }

// CounterAdd adds to a counter.
type CounterAdd struct {
	Tenant, Namespace, Cache string
	Key                      string
	Delta                    int64
	RequestID                uint64
}

// Type is "counter_add".
func (*CounterAdd) Type() string { return "counter_add" }

func (m *CounterAdd) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.i64("delta", &m.Delta)
	c.u64("request_id", &m.RequestID)
}

// CounterGet reads a counter.
type CounterGet struct {
	Tenant, Namespace, Cache string
	Key                      string
	RequestID                uint64
}

// Type is "counter_get".
func (*CounterGet) Type() string { return "counter_get" }

func (m *CounterGet) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.view("key", &m.Key)
	c.u64("request_id", &m.RequestID)
}

// CounterValue answers both. Without a value the counter was never written,
// which is not zero.
type CounterValue struct {
	Value     int64
	HasValue  bool
	RequestID uint64
}

// Type is "counter_value".
func (*CounterValue) Type() string { return "counter_value" }

func (m *CounterValue) fields(c *codec) {
	c.i64Has("value", &m.Value, &m.HasValue)
	c.u64("request_id", &m.RequestID)
}
