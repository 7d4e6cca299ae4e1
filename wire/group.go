package wire

// GroupRef names a consumer group on one shard of a stream, in every group
// request.
type GroupRef struct {
	Tenant, Namespace, Stream string
	Shard                     uint32
	Group                     string
}

func (m *GroupRef) fields(c *codec) {
	c.scope(&m.Tenant, &m.Namespace)
	c.name("stream", &m.Stream)
	c.u32("shard", &m.Shard)
	c.name("group", &m.Group)
}

// GroupPoll claims records for a group.
type GroupPoll struct {
	GroupRef
	MaxRecords uint32
	// WaitMillis is how long to wait for a first record.
	WaitMillis uint64
	// Consumer is 1 to 128 bytes when given (FeatureGroupConsumer).
	Consumer    string
	HasConsumer bool
	Reclaim     bool
	// VisibilityMillis is how long the claims stand; 0 for the default.
	VisibilityMillis uint64
	RequestID        uint64
}

// Type is "group_poll".
func (*GroupPoll) Type() string { return "group_poll" }

func (m *GroupPoll) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u32("max_records", &m.MaxRecords)
	c.u64Default("wait_ms", &m.WaitMillis)
	c.textHas("consumer", &m.Consumer, &m.HasConsumer)
	c.boolDefault("reclaim", &m.Reclaim)
	c.u64Default("visibility_ms", &m.VisibilityMillis)
	c.u64("request_id", &m.RequestID)
}

// GroupRecord is one claimed record.
type GroupRecord struct {
	Offset  uint64
	Payload []byte
	// Attempts counts this delivery; 0 is not reported.
	Attempts           uint32
	SkippedBefore      uint64
	Publisher          string
	TimestampMicros    uint64
	HasTimestampMicros bool
}

func (m *GroupRecord) fields(c *codec) {
	c.u64("offset", &m.Offset)
	c.bytes("payload", &m.Payload)
	c.u32Default("attempts", &m.Attempts)
	c.u64Default("skipped_before", &m.SkippedBefore)
	c.textDefault("publisher", &m.Publisher)
	c.u64Has("timestamp_micros", &m.TimestampMicros, &m.HasTimestampMicros)
}

// GroupRecords answers a group_poll; an empty list is a normal answer.
type GroupRecords struct {
	Records   []GroupRecord
	RequestID uint64
}

// Type is "group_records".
func (*GroupRecords) Type() string { return "group_records" }

func (m *GroupRecords) fields(c *codec) {
	list(c, "records", &m.Records)
	c.u64("request_id", &m.RequestID)
}

// GroupAck settles a claim.
type GroupAck struct {
	GroupRef
	Offset, RequestID uint64
}

// Type is "group_ack".
func (*GroupAck) Type() string { return "group_ack" }

func (m *GroupAck) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("offset", &m.Offset)
	c.u64("request_id", &m.RequestID)
}

// GroupNack gives a claim back.
type GroupNack struct {
	GroupRef
	Offset uint64
	// DelayMillis is how long the record is held back. Absent, the group's backoff
	// decides; other clients leave it out for zero.
	DelayMillis uint64
	HasDelay    bool
	// Attempts names the delivery; 0 names any.
	Attempts  uint32
	RequestID uint64
}

// Type is "group_nack".
func (*GroupNack) Type() string { return "group_nack" }

func (m *GroupNack) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("offset", &m.Offset)
	c.u64Has("delay_ms", &m.DelayMillis, &m.HasDelay)
	c.u32Default("attempts", &m.Attempts)
	c.u64("request_id", &m.RequestID)
}

// GroupDeadLetters lists the dead letters of a group.
type GroupDeadLetters struct {
	GroupRef
	RequestID uint64
}

// Type is "group_dead_letters".
func (*GroupDeadLetters) Type() string { return "group_dead_letters" }

func (m *GroupDeadLetters) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("request_id", &m.RequestID)
}

// GroupDeadLetterList answers it with offsets in ascending order.
type GroupDeadLetterList struct {
	Offsets   []uint64
	RequestID uint64
}

// Type is "group_dead_letter_list".
func (*GroupDeadLetterList) Type() string { return "group_dead_letter_list" }

func (m *GroupDeadLetterList) fields(c *codec) {
	c.u64List("offsets", &m.Offsets)
	c.u64("request_id", &m.RequestID)
}

// GroupDiscard forgets a dead letter.
type GroupDiscard struct {
	GroupRef
	Offset, RequestID uint64
}

// Type is "group_discard".
func (*GroupDiscard) Type() string { return "group_discard" }

func (m *GroupDiscard) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("offset", &m.Offset)
	c.u64("request_id", &m.RequestID)
}

// GroupRedrive owes a dead letter again, its attempts reset.
type GroupRedrive struct {
	GroupRef
	Offset, RequestID uint64
}

// Type is "group_redrive".
func (*GroupRedrive) Type() string { return "group_redrive" }

func (m *GroupRedrive) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("offset", &m.Offset)
	c.u64("request_id", &m.RequestID)
}

// GroupExtend makes a claim stand longer.
type GroupExtend struct {
	GroupRef
	Offset       uint64
	Attempts     uint32
	ExtendMillis uint64
	RequestID    uint64
}

// Type is "group_extend".
func (*GroupExtend) Type() string { return "group_extend" }

func (m *GroupExtend) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("offset", &m.Offset)
	c.u32("attempts", &m.Attempts)
	c.u64("extend_ms", &m.ExtendMillis)
	c.u64("request_id", &m.RequestID)
}

// GroupExtended answers it with how long the claim stands from now.
type GroupExtended struct {
	VisibleMillis, RequestID uint64
}

// Type is "group_extended".
func (*GroupExtended) Type() string { return "group_extended" }

func (m *GroupExtended) fields(c *codec) {
	c.u64("visible_ms", &m.VisibleMillis)
	c.u64("request_id", &m.RequestID)
}

// GroupDeadLetter gives a record up.
type GroupDeadLetter struct {
	GroupRef
	Offset, RequestID uint64
}

// Type is "group_dead_letter".
func (*GroupDeadLetter) Type() string { return "group_dead_letter" }

func (m *GroupDeadLetter) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("offset", &m.Offset)
	c.u64("request_id", &m.RequestID)
}

// GroupSeek moves the position of a group.
type GroupSeek struct {
	GroupRef
	Start Start
	// IfNew acts only when the group has no position yet.
	IfNew     bool
	RequestID uint64
}

// Type is "group_seek".
func (*GroupSeek) Type() string { return "group_seek" }

func (m *GroupSeek) fields(c *codec) {
	m.GroupRef.fields(c)
	c.start("start", &m.Start, true)
	c.boolDefault("if_new", &m.IfNew)
	c.u64("request_id", &m.RequestID)
}

// GroupPosition answers a group_seek.
type GroupPosition struct {
	Offset    uint64
	Moved     bool
	RequestID uint64
}

// Type is "group_position".
func (*GroupPosition) Type() string { return "group_position" }

func (m *GroupPosition) fields(c *codec) {
	c.u64("offset", &m.Offset)
	c.boolean("moved", &m.Moved)
	c.u64("request_id", &m.RequestID)
}

// GroupDescribe asks for the counts of a group.
type GroupDescribe struct {
	GroupRef
	RequestID uint64
}

// Type is "group_describe".
func (*GroupDescribe) Type() string { return "group_describe" }

func (m *GroupDescribe) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("request_id", &m.RequestID)
}

// GroupInfo answers a group_describe.
type GroupInfo struct {
	Committed                         uint64
	HasCommitted                      bool
	Tail, InFlight, Owed, DeadLetters uint64
	RequestID                         uint64
}

// Type is "group_info".
func (*GroupInfo) Type() string { return "group_info" }

func (m *GroupInfo) fields(c *codec) {
	c.u64Has("committed", &m.Committed, &m.HasCommitted)
	c.u64("tail", &m.Tail)
	c.u64("in_flight", &m.InFlight)
	c.u64("owed", &m.Owed)
	c.u64("dead_letters", &m.DeadLetters)
	c.u64("request_id", &m.RequestID)
}

// GroupDelete forgets a group.
type GroupDelete struct {
	GroupRef
	RequestID uint64
}

// Type is "group_delete".
func (*GroupDelete) Type() string { return "group_delete" }

func (m *GroupDelete) fields(c *codec) {
	m.GroupRef.fields(c)
	c.u64("request_id", &m.RequestID)
}

// GroupDeleted answers a group_delete.
type GroupDeleted struct {
	Existed   bool
	RequestID uint64
}

// Type is "group_deleted".
func (*GroupDeleted) Type() string { return "group_deleted" }

func (m *GroupDeleted) fields(c *codec) {
	c.boolean("existed", &m.Existed)
	c.u64("request_id", &m.RequestID)
}
