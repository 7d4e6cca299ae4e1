package wire

// Names of the extensions: requests of ours beside the protocol's own. A client asks with
// Auth.Extensions which of them are served.
const (
	ExtCacheList        = "cache.list"         // CacheListBody, CacheKeys
	ExtCounterAddOnce   = "counter.add_once"   // CounterAddOnceBody, CounterSum
	ExtGroupAck         = "group.ack"          // GroupAckBody, nothing
	ExtGroupConfigure   = "group.configure"    // GroupBody, GroupConfig
	ExtGroupDeadLetters = "group.dead_letters" // GroupBody, GroupLetters
	ExtGroupDescribe    = "group.describe"     // GroupBody, GroupBooks
	ExtGroupList        = "group.list"         // GroupBody, GroupNames
)

// Extension is a request outside the protocol's own, by name.
type Extension struct {
	Name         string
	RequestID    uint64
	HasRequestID bool
	// Body is JSON, or empty.
	Body []byte
}

// Type is "extension".
func (*Extension) Type() string { return "extension" }

func (m *Extension) fields(c *codec) {
	c.name("name", &m.Name)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
	c.raw("body", &m.Body)
}

// ExtensionOK answers an extension that is served. Ours.
type ExtensionOK struct {
	Name         string
	RequestID    uint64
	HasRequestID bool
	// Body is JSON, or empty.
	Body []byte
}

// Type is "extension_ok".
func (*ExtensionOK) Type() string { return "extension_ok" }

func (m *ExtensionOK) fields(c *codec) {
	c.name("name", &m.Name)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
	c.raw("body", &m.Body)
}

// CacheListBody asks for a page of one shard's keys.
type CacheListBody struct {
	Tenant    string `json:"tenant_id"`
	Namespace string `json:"namespace"`
	Cache     string `json:"cache"`
	Shard     int    `json:"shard"`
	Prefix    string `json:"prefix"`
	// After is the last key of the page before, empty for the first page.
	After string `json:"after"`
	// Limit is how many keys the page may hold; 0, or more than the broker allows, is
	// as many as it allows.
	Limit int `json:"limit"`
}

// CacheKeys is a page of keys, in order.
type CacheKeys struct {
	Keys []string `json:"keys"`
	More bool     `json:"more"` // there are others behind the last
}

// CounterAddOnceBody is an addition that a retry does not repeat: one that carries the same
// producer and sequence is answered with the sum of the first.
type CounterAddOnceBody struct {
	Tenant    string `json:"tenant_id"`
	Namespace string `json:"namespace"`
	Cache     string `json:"cache"`
	Key       string `json:"key"`
	Delta     int64  `json:"delta"`
	Producer  uint64 `json:"producer_id"`
	Sequence  uint64 `json:"sequence"`
}

// CounterSum answers an addition.
type CounterSum struct {
	Value    int64 `json:"value"`
	Repeated bool  `json:"repeated"` // it had been counted before
}

// GroupBody is what the extensions about groups ask about.
type GroupBody struct {
	Tenant    string `json:"tenant_id"`
	Namespace string `json:"namespace"`
	Stream    string `json:"stream"`
	Shard     uint32 `json:"shard"`
	Group     string `json:"group"`
	// From is the offset from which ExtGroupDeadLetters lists.
	From uint64 `json:"from,omitempty"`
	// Limit is how many letters the page may hold; 0, or more than the broker allows, is
	// as many as it allows.
	Limit int `json:"limit,omitempty"`
	// Config is what ExtGroupConfigure sets.
	Config *GroupConfig `json:"config,omitempty"`
}

// GroupAckBody settles many records of one shard.
type GroupAckBody struct {
	Tenant    string   `json:"tenant_id"`
	Namespace string   `json:"namespace"`
	Stream    string   `json:"stream"`
	Shard     uint32   `json:"shard"`
	Group     string   `json:"group"`
	Offsets   []uint64 `json:"offsets"`
}

// GroupConfig is a group's configuration; absent fields are the broker's defaults.
type GroupConfig struct {
	VisibilityMillis uint64  `json:"visibility_ms,omitempty"`
	MaxAttempts      int     `json:"max_attempts,omitempty"`
	BackoffMillis    uint64  `json:"backoff_ms,omitempty"`
	BackoffMaxMillis uint64  `json:"backoff_max_ms,omitempty"`
	BackoffFactor    float64 `json:"backoff_factor,omitempty"`
	MaxInFlight      int     `json:"max_in_flight,omitempty"`
	Exclusive        bool    `json:"exclusive,omitempty"`
}

// GroupBooks are a group's books on one shard. Start, Position and Tail are offsets, the
// other numbers count records.
type GroupBooks struct {
	Group     string      `json:"group"`
	Exists    bool        `json:"exists"`
	Start     uint64      `json:"start"`
	Position  uint64      `json:"position"`
	Tail      uint64      `json:"tail"`
	Ready     uint64      `json:"ready"`
	Owed      uint64      `json:"owed"`
	Delayed   uint64      `json:"delayed"`
	Claimed   uint64      `json:"claimed"`
	Acked     uint64      `json:"acked"`
	Dead      uint64      `json:"dead"`
	Discarded uint64      `json:"discarded"`
	Lost      uint64      `json:"lost"`
	Lag       uint64      `json:"lag"`
	Config    GroupConfig `json:"config"`
}

// GroupNames are the groups of a stream's shard.
type GroupNames struct {
	Groups []string `json:"groups"`
}

// GroupLetters is a page of dead letters, by offset.
type GroupLetters struct {
	Letters []GroupLetter `json:"letters"`
	More    bool          `json:"more"` // there are others behind the last
}

// GroupLetter is a dead letter.
type GroupLetter struct {
	Offset   uint64 `json:"offset"`
	Attempts uint32 `json:"attempts"`
	Reason   string `json:"reason"`
	AtMicros int64  `json:"at_micros"`
	Payload  []byte `json:"payload"`
	Size     int    `json:"size"` // of the whole payload, in bytes
	Cut      bool   `json:"cut"`  // Payload is its beginning
}
