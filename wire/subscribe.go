package wire

// StartKind is where a subscription or a group begins.
type StartKind uint8

// The places to begin at.
const (
	// StartDefault: the field is absent, which means latest.
	StartDefault StartKind = iota
	StartLatest
	StartEarliest
	// StartOffset: the first offset not yet seen.
	StartOffset
)

// Start is the field start of subscribe and group_seek.
type Start struct {
	Kind   StartKind
	Offset uint64
}

// Subscribe asks for the records of one shard as they come.
type Subscribe struct {
	Tenant, Namespace, Stream string
	// SubscriptionID is a wish of the client; the answer's id counts.
	SubscriptionID    uint64
	HasSubscriptionID bool
	Start             Start
	// Shard is 0 when absent.
	Shard uint32
	// QueueCapacity is the wished queue in published batches (FeatureSubscribeQueue).
	QueueCapacity    uint32
	HasQueueCapacity bool
}

// Type is "subscribe".
func (*Subscribe) Type() string { return "subscribe" }

func (m *Subscribe) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.u64Has("subscription_id", &m.SubscriptionID, &m.HasSubscriptionID)
	c.start("start", &m.Start, false)
	c.u32Default("shard", &m.Shard)
	c.u32Has("queue_capacity", &m.QueueCapacity, &m.HasQueueCapacity)
}

// Subscribed answers a subscribe.
type Subscribed struct {
	SubscriptionID uint64
	// StartOffset is the first offset that will be delivered; LiveOffset the
	// tail when the subscriber was registered. Both or none.
	StartOffset      uint64
	HasStartOffset   bool
	LiveOffset       uint64
	HasLiveOffset    bool
	QueueCapacity    uint32
	HasQueueCapacity bool
}

// Type is "subscribed".
func (*Subscribed) Type() string { return "subscribed" }

func (m *Subscribed) fields(c *codec) {
	c.u64("subscription_id", &m.SubscriptionID)
	c.u64Has("start_offset", &m.StartOffset, &m.HasStartOffset)
	c.u64Has("live_offset", &m.LiveOffset, &m.HasLiveOffset)
	c.u32Has("queue_capacity", &m.QueueCapacity, &m.HasQueueCapacity)
}

// SubscribeCursorError refuses a start outside what is retained.
type SubscribeCursorError struct {
	// InFuture says that Requested is past the tail; otherwise it is below the
	// oldest retained record.
	InFuture  bool
	Requested uint64
	// Available is the oldest retained offset, or the tail when InFuture.
	Available uint64
}

// Type is "subscribe_cursor_error".
func (*SubscribeCursorError) Type() string { return "subscribe_cursor_error" }

func (m *SubscribeCursorError) fields(c *codec) {
	c.choice("reason", &m.InFuture, "too_old", "in_future")
	c.u64("requested", &m.Requested)
	c.u64("available", &m.Available)
}

// EventStreamHello is the first frame of the events of a subscription.
type EventStreamHello struct {
	SubscriptionID uint64
}

// Type is "event_stream_hello".
func (*EventStreamHello) Type() string { return "event_stream_hello" }

func (m *EventStreamHello) fields(c *codec) { c.u64("subscription_id", &m.SubscriptionID) }

// Event is one record as JSON.
type Event struct {
	Tenant, Namespace, Stream string
	Payload                   []byte
	Offset                    uint64
	HasOffset                 bool
}

// Type is "event".
func (*Event) Type() string { return "event" }

func (m *Event) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.bytes("payload", &m.Payload)
	c.u64Has("offset", &m.Offset, &m.HasOffset)
}

// EventBatchMessage is the JSON message event_batch. [EventBatch] is the binary
// layout, which servers send.
type EventBatchMessage struct {
	Tenant, Namespace, Stream string
	Payloads                  [][]byte
	BaseOffset                uint64
	HasBaseOffset             bool
}

// Type is "event_batch".
func (*EventBatchMessage) Type() string { return "event_batch" }

func (m *EventBatchMessage) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.bytesList("payloads", &m.Payloads)
	c.u64Has("base_offset", &m.BaseOffset, &m.HasBaseOffset)
}

// ShardMoved ends a subscription or watch whose shard is led elsewhere now.
type ShardMoved struct {
	SubscriptionID uint64
	// ResumeFrom is the first offset not offered to this reader.
	ResumeFrom    uint64
	HasResumeFrom bool
	NodeID, Addr  string
	Generation    uint64
}

// Type is "shard_moved".
func (*ShardMoved) Type() string { return "shard_moved" }

func (m *ShardMoved) fields(c *codec) {
	c.u64("subscription_id", &m.SubscriptionID)
	c.u64Has("resume_from", &m.ResumeFrom, &m.HasResumeFrom)
	c.textDefault("node_id", &m.NodeID)
	c.textDefault("addr", &m.Addr)
	c.u64("generation", &m.Generation)
}

// SubscriptionLagged ends a subscription that was too slow.
type SubscriptionLagged struct {
	SubscriptionID, ResumeFrom uint64
}

// Type is "subscription_lagged".
func (*SubscriptionLagged) Type() string { return "subscription_lagged" }

func (m *SubscriptionLagged) fields(c *codec) {
	c.u64("subscription_id", &m.SubscriptionID)
	c.u64("resume_from", &m.ResumeFrom)
}

// StreamRead reads the records of a shard from From up to End.
type StreamRead struct {
	Tenant, Namespace, Stream string
	Shard                     uint32
	From                      uint64
	// End is exclusive.
	End    uint64
	HasEnd bool
	// MaxRecords and MaxBytes are 0 for the server's own caps.
	MaxRecords uint32
	MaxBytes   uint64
	RequestID  uint64
}

// Type is "stream_read".
func (*StreamRead) Type() string { return "stream_read" }

func (m *StreamRead) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.u32("shard", &m.Shard)
	c.u64("from", &m.From)
	c.u64Has("end", &m.End, &m.HasEnd)
	c.u32Default("max_records", &m.MaxRecords)
	c.u64Default("max_bytes", &m.MaxBytes)
	c.u64("request_id", &m.RequestID)
}

// StreamRecord is one record of a page.
type StreamRecord struct {
	Offset          uint64
	Payload         []byte
	Publisher       string
	TimestampMicros uint64
}

func (m *StreamRecord) fields(c *codec) {
	c.u64("offset", &m.Offset)
	c.bytes("payload", &m.Payload)
	c.textDefault("publisher", &m.Publisher)
	c.u64("timestamp_micros", &m.TimestampMicros)
}

// StreamRecords answers a stream_read. NextOffset may pass over offsets that
// hold no record.
type StreamRecords struct {
	Records    []StreamRecord
	NextOffset uint64
	RequestID  uint64
}

// Type is "stream_records".
func (*StreamRecords) Type() string { return "stream_records" }

func (m *StreamRecords) fields(c *codec) {
	list(c, "records", &m.Records)
	c.u64("next_offset", &m.NextOffset)
	c.u64("request_id", &m.RequestID)
}

// OffsetForTime asks for the first offset at or after a time.
type OffsetForTime struct {
	Tenant, Namespace, Stream string
	Shard                     uint32
	AtMicros                  uint64
	RequestID                 uint64
}

// Type is "offset_for_time".
func (*OffsetForTime) Type() string { return "offset_for_time" }

func (m *OffsetForTime) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.u32("shard", &m.Shard)
	c.u64("at_micros", &m.AtMicros)
	c.u64("request_id", &m.RequestID)
}

// OffsetValue answers an offset_for_time; without an offset there is no record
// that recent.
type OffsetValue struct {
	Offset    uint64
	HasOffset bool
	RequestID uint64
}

// Type is "offset_value".
func (*OffsetValue) Type() string { return "offset_value" }

func (m *OffsetValue) fields(c *codec) {
	c.u64Has("offset", &m.Offset, &m.HasOffset)
	c.u64("request_id", &m.RequestID)
}
