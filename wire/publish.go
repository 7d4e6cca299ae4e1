package wire

// AckMode says whether and how a publish is acknowledged.
type AckMode uint8

// The acknowledgement modes. A batch is one unit in both; the mode is kept
// because the protocol has it.
const (
	AckNone       AckMode = 0
	AckPerMessage AckMode = 1
	AckPerBatch   AckMode = 2
)

// String returns the name on the wire.
func (a AckMode) String() string {
	switch a {
	case AckPerMessage:
		return "per_message"
	case AckPerBatch:
		return "per_batch"
	}
	return "none"
}

// Publish appends one record.
type Publish struct {
	Tenant, Namespace, Stream string
	Payload                   []byte
	Key                       []byte
	HasKey                    bool
	RequestID                 uint64
	HasRequestID              bool
	Ack                       AckMode
	// Shard names the shard instead of a key (FeatureExplicitShard).
	Shard    uint32
	HasShard bool
}

// Type is "publish".
func (*Publish) Type() string { return "publish" }

func (m *Publish) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.ownBytes("payload", &m.Payload)
	c.bytesHas("key", &m.Key, &m.HasKey)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
	c.ack("ack", &m.Ack)
	c.u32Has("shard", &m.Shard, &m.HasShard)
}

// PublishBatch appends records to one shard as a unit.
type PublishBatch struct {
	Tenant, Namespace, Stream string
	Payloads                  [][]byte
	Key                       []byte
	HasKey                    bool
	RequestID                 uint64
	HasRequestID              bool
	Ack                       AckMode
	Shard                     uint32
	HasShard                  bool
}

// Type is "publish_batch".
func (*PublishBatch) Type() string { return "publish_batch" }

func (m *PublishBatch) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.ownBytesList("payloads", &m.Payloads)
	c.bytesHas("key", &m.Key, &m.HasKey)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
	c.ack("ack", &m.Ack)
	c.u32Has("shard", &m.Shard, &m.HasShard)
}

// PublishOK answers a publish.
type PublishOK struct {
	RequestID uint64
	// Offset is that of the first record of the batch, sent when the answer was
	// given after the write and the client offered FlagBinaryPublishAckOffset.
	Offset    uint64
	HasOffset bool
}

// Type is "publish_ok".
func (*PublishOK) Type() string { return "publish_ok" }

func (m *PublishOK) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.u64Has("offset", &m.Offset, &m.HasOffset)
}

// PublishError answers a publish that failed.
type PublishError struct {
	RequestID uint64
	Failure   Failure
}

// Type is "publish_error".
func (*PublishError) Type() string { return "publish_error" }

func (m *PublishError) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.view("message", &m.Failure.Message)
	c.failure(&m.Failure)
}

// ProducerInit asks for a producer id.
type ProducerInit struct {
	RequestID uint64
}

// Type is "producer_init".
func (*ProducerInit) Type() string { return "producer_init" }

func (m *ProducerInit) fields(c *codec) { c.u64("request_id", &m.RequestID) }

// ProducerInitOK grants a producer id, 64 random bits.
type ProducerInitOK struct {
	RequestID, ProducerID uint64
}

// Type is "producer_init_ok".
func (*ProducerInitOK) Type() string { return "producer_init_ok" }

func (m *ProducerInitOK) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.u64("producer_id", &m.ProducerID)
}

// PublishIdempotent appends a batch once however often it is sent. Sequence
// counts the batches of a producer on a shard from 0.
type PublishIdempotent struct {
	Tenant, Namespace, Stream string
	Payloads                  [][]byte
	Key                       []byte
	HasKey                    bool
	RequestID                 uint64
	ProducerID, Sequence      uint64
	Shard                     uint32
	HasShard                  bool
}

// Type is "publish_idempotent".
func (*PublishIdempotent) Type() string { return "publish_idempotent" }

func (m *PublishIdempotent) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.ownBytesList("payloads", &m.Payloads)
	c.bytesHas("key", &m.Key, &m.HasKey)
	c.u64("request_id", &m.RequestID)
	c.u64("producer_id", &m.ProducerID)
	c.u64("sequence", &m.Sequence)
	c.u32Has("shard", &m.Shard, &m.HasShard)
}

// PublishIf appends a batch only if the next offset of the shard is exactly
// ExpectedOffset.
type PublishIf struct {
	Tenant, Namespace, Stream string
	Payloads                  [][]byte
	Key                       []byte
	HasKey                    bool
	ExpectedOffset            uint64
	RequestID                 uint64
	Shard                     uint32
	HasShard                  bool
}

// Type is "publish_if".
func (*PublishIf) Type() string { return "publish_if" }

func (m *PublishIf) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.ownBytesList("payloads", &m.Payloads)
	c.bytesHas("key", &m.Key, &m.HasKey)
	c.u64("expected_offset", &m.ExpectedOffset)
	c.u64("request_id", &m.RequestID)
	c.u32Has("shard", &m.Shard, &m.HasShard)
}

// RefusedReason is why an idempotent or conditional publish was refused.
type RefusedReason string

// The reasons of publish_refused.
const (
	RefusedUnknownProducer RefusedReason = "unknown_producer"
	RefusedSequenceExpired RefusedReason = "sequence_expired"
	RefusedSequenceReused  RefusedReason = "sequence_reused"
	// RefusedSequenceGap comes with the expected sequence.
	RefusedSequenceGap RefusedReason = "sequence_gap"
	// RefusedOffsetMismatch comes with the tail of the shard.
	RefusedOffsetMismatch RefusedReason = "offset_mismatch"
	// RefusedNotLeader comes with the node that leads.
	RefusedNotLeader RefusedReason = "not_leader"
)

// PublishRefused answers a publish that was not applied because of its
// sequence, its condition or the shard's leader.
type PublishRefused struct {
	RequestID uint64
	Reason    RefusedReason
	// Expected is the sequence of RefusedSequenceGap.
	Expected uint64
	// Tail is the next offset, of RefusedOffsetMismatch.
	Tail uint64
	// NodeID and Addr name the leader, of RefusedNotLeader.
	NodeID, Addr string
	Message      string
}

// Type is "publish_refused".
func (*PublishRefused) Type() string { return "publish_refused" }

func (m *PublishRefused) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.refusal("reason", m)
	c.text("message", &m.Message)
}

// Change is one put or delete of a commit.
type Change struct {
	// Delete says that the key is removed; Value is then unused.
	Delete bool
	Key    string
	Value  []byte
}

func (m *Change) fields(c *codec) {
	c.choice("op", &m.Delete, "put", "delete")
	c.text("key", &m.Key)
	if c.decoding() {
		has := false
		c.ownBytesHas("value", &m.Value, &has)
		if !m.Delete && !has {
			c.fail("value", "is missing")
		}
		return
	}
	if !m.Delete {
		c.ownBytes("value", &m.Value)
	}
}

// Commit appends one event and changes the state of its entity in one record.
type Commit struct {
	Tenant, Namespace, Stream string
	EntityKey, Event          []byte
	Changes                   []Change
	RequestID                 uint64
	ExpectedOffset            uint64
	HasExpectedOffset         bool
	Shard                     uint32
	HasShard                  bool
}

// Type is "commit".
func (*Commit) Type() string { return "commit" }

func (m *Commit) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.ownBytes("entity_key", &m.EntityKey)
	c.ownBytes("event", &m.Event)
	listDefault(c, "changes", &m.Changes)
	c.u64("request_id", &m.RequestID)
	c.u64Has("expected_offset", &m.ExpectedOffset, &m.HasExpectedOffset)
	c.u32Has("shard", &m.Shard, &m.HasShard)
}

// CommitOK answers a commit. Offset is that of the event and the version of
// every key written.
type CommitOK struct {
	RequestID, Offset uint64
}

// Type is "commit_ok".
func (*CommitOK) Type() string { return "commit_ok" }

func (m *CommitOK) fields(c *codec) {
	c.u64("request_id", &m.RequestID)
	c.u64("offset", &m.Offset)
}

// StateGet reads one key of the state of an entity.
type StateGet struct {
	Tenant, Namespace, Stream string
	EntityKey                 []byte
	Key                       string
	RequestID                 uint64
	Shard                     uint32
	HasShard                  bool
}

// Type is "state_get".
func (*StateGet) Type() string { return "state_get" }

func (m *StateGet) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.bytes("entity_key", &m.EntityKey)
	c.text("key", &m.Key)
	c.u64("request_id", &m.RequestID)
	c.u32Has("shard", &m.Shard, &m.HasShard)
}

// StateValue answers a state_get. HasValue is false when the key has no value.
type StateValue struct {
	Value      []byte
	HasValue   bool
	Version    uint64
	HasVersion bool
	AsOf       uint64
	HasAsOf    bool
	RequestID  uint64
}

// Type is "state_value".
func (*StateValue) Type() string { return "state_value" }

func (m *StateValue) fields(c *codec) {
	c.bytesNull("value", &m.Value, &m.HasValue)
	c.u64Has("version", &m.Version, &m.HasVersion)
	c.u64Has("as_of", &m.AsOf, &m.HasAsOf)
	c.u64("request_id", &m.RequestID)
}
