package wire

// Topology asks for the brokers of a cluster.
type Topology struct{}

// Type is "topology".
func (*Topology) Type() string { return "topology" }

func (*Topology) fields(*codec) {}

// BrokerAddr is one broker and its client listener, host and port.
type BrokerAddr struct {
	NodeID, Addr string
}

func (m *BrokerAddr) fields(c *codec) {
	c.text("node_id", &m.NodeID)
	c.text("addr", &m.Addr)
}

// TopologyView answers a topology; an empty list is valid.
type TopologyView struct {
	Brokers []BrokerAddr
}

// Type is "topology_view".
func (*TopologyView) Type() string { return "topology_view" }

func (m *TopologyView) fields(c *codec) { list(c, "brokers", &m.Brokers) }

// StreamShards asks for the count of shards of a stream.
type StreamShards struct {
	Tenant, Namespace, Stream string
	RequestID                 uint64
}

// Type is "stream_shards".
func (*StreamShards) Type() string { return "stream_shards" }

func (m *StreamShards) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.u64("request_id", &m.RequestID)
}

// StreamShardsView answers a stream_shards. Shards is 0 for a stream that the
// broker does not know.
type StreamShardsView struct {
	Shards    uint32
	RequestID uint64
	// Routing is how keys are placed; absent reads as modulo.
	Routing    Routing
	HasRouting bool
}

// Type is "stream_shards_view".
func (*StreamShardsView) Type() string { return "stream_shards_view" }

func (m *StreamShardsView) fields(c *codec) {
	c.u32("shards", &m.Shards)
	c.u64("request_id", &m.RequestID)
	c.routing("routing", &m.Routing, &m.HasRouting)
}

// CacheShards asks for the count of shards of a cache.
type CacheShards struct {
	Tenant, Namespace, Cache string
	RequestID                uint64
}

// Type is "cache_shards".
func (*CacheShards) Type() string { return "cache_shards" }

func (m *CacheShards) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("cache", &m.Cache)
	c.u64("request_id", &m.RequestID)
}

// CacheShardsView answers a cache_shards; 0 shards is an unknown cache.
type CacheShardsView struct {
	Shards    uint32
	RequestID uint64
}

// Type is "cache_shards_view".
func (*CacheShardsView) Type() string { return "cache_shards_view" }

func (m *CacheShardsView) fields(c *codec) {
	c.u32("shards", &m.Shards)
	c.u64("request_id", &m.RequestID)
}

// ShardOwners asks who leads each shard of a stream or cache.
type ShardOwners struct {
	Tenant, Namespace, Name string
	// Cache says that Name is a cache; otherwise it is a stream.
	Cache     bool
	RequestID uint64
}

// Type is "shard_owners".
func (*ShardOwners) Type() string { return "shard_owners" }

func (m *ShardOwners) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("name", &m.Name)
	c.choice("kind", &m.Cache, "stream", "cache")
	c.u64("request_id", &m.RequestID)
}

// ShardOwner is the leader of one shard. NodeID and Addr are empty on a broker
// without a cluster and when nobody leads; Unavailable then says why.
type ShardOwner struct {
	Shard        uint32
	NodeID, Addr string
	Generation   uint64
	Unavailable  string
}

func (m *ShardOwner) fields(c *codec) {
	c.u32("shard", &m.Shard)
	c.textDefault("node_id", &m.NodeID)
	c.textDefault("addr", &m.Addr)
	c.u64("generation", &m.Generation)
	c.textDefault("unavailable", &m.Unavailable)
}

// ShardOwnersView answers a shard_owners: one entry a shard in order, none for
// an unknown name.
type ShardOwnersView struct {
	Owners    []ShardOwner
	RequestID uint64
}

// Type is "shard_owners_view".
func (*ShardOwnersView) Type() string { return "shard_owners_view" }

func (m *ShardOwnersView) fields(c *codec) {
	list(c, "owners", &m.Owners)
	c.u64("request_id", &m.RequestID)
}

// ShardInspect asks what a node knows of a shard. The view is kept as JSON.
type ShardInspect struct {
	Tenant, Namespace, Name, Kind string
	Shard                         uint32
	RequestID                     uint64
}

// Type is "shard_inspect".
func (*ShardInspect) Type() string { return "shard_inspect" }

func (m *ShardInspect) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("name", &m.Name)
	c.text("kind", &m.Kind)
	c.u32("shard", &m.Shard)
	c.u64("request_id", &m.RequestID)
}

// ShardInspectInfo answers a shard_inspect. View is JSON.
type ShardInspectInfo struct {
	RequestID uint64
	View      []byte
}

// Type is "shard_inspect_info".
func (*ShardInspectInfo) Type() string { return "shard_inspect_info" }

func (m *ShardInspectInfo) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.raw("view", &m.View)
}

// SubscriptionsList asks for the subscriptions of a node. Filter and Cursor are
// JSON objects, or empty.
type SubscriptionsList struct {
	RequestID uint64
	Filter    []byte
	Limit     uint32
	HasLimit  bool
	Cursor    []byte
}

// Type is "subscriptions_list".
func (*SubscriptionsList) Type() string { return "subscriptions_list" }

func (m *SubscriptionsList) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.raw("filter", &m.Filter)
	c.u32Has("limit", &m.Limit, &m.HasLimit)
	c.raw("cursor", &m.Cursor)
}

// SubscriptionsListInfo answers a subscriptions_list. Subscriptions is a JSON
// array, NextCursor a JSON object or empty.
type SubscriptionsListInfo struct {
	RequestID     uint64
	NodeID        string
	Subscriptions []byte
	NextCursor    []byte
}

// Type is "subscriptions_list_info".
func (*SubscriptionsListInfo) Type() string { return "subscriptions_list_info" }

func (m *SubscriptionsListInfo) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.text("node_id", &m.NodeID)
	c.raw("subscriptions", &m.Subscriptions)
	c.raw("next_cursor", &m.NextCursor)
}
