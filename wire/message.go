package wire

// Message is a JSON message: a pointer to one of the structs of this package
// that are named after the types of the protocol.
type Message interface {
	// Type is the value of the field type, such as "publish_ok".
	Type() string
	// fields names every field in the order of the protocol. One method serves
	// both directions, so that they cannot disagree.
	fields(c *codec)
}

type messageKind struct {
	id   int
	make func() Message
	// request: a client may send it. The others are answers and events.
	request bool
}

func kind[T any, P interface {
	*T
	Message
}]() func() Message {
	return func() Message { return P(new(T)) }
}

var messageKinds = func() map[string]*messageKind {
	kinds := make(map[string]*messageKind)
	add := func(request bool, makers ...func() Message) {
		for _, m := range makers {
			kinds[m().Type()] = &messageKind{id: len(kinds), make: m, request: request}
		}
	}
	add(true,
		kind[Auth](), kind[Extension](),
		kind[Publish](), kind[PublishBatch](), kind[ProducerInit](), kind[PublishIdempotent](), kind[PublishIf](),
		kind[Commit](), kind[StateGet](),
		kind[Topology](), kind[StreamShards](), kind[CacheShards](), kind[ShardOwners](),
		kind[Subscribe](), kind[StreamRead](), kind[OffsetForTime](),
		kind[CachePut](), kind[CacheGet](), kind[CacheDelete](), kind[CachePutIf](), kind[CacheDeleteIf](), kind[CacheWatch](),
		kind[CounterAdd](), kind[CounterGet](),
		kind[GroupPoll](), kind[GroupAck](), kind[GroupNack](), kind[GroupDeadLetters](), kind[GroupDiscard](), kind[GroupRedrive](),
		kind[GroupExtend](), kind[GroupDeadLetter](), kind[GroupSeek](), kind[GroupDescribe](), kind[GroupDelete](),
		kind[ShardInspect](), kind[SubscriptionsList](),
	)
	add(false,
		kind[OK](), kind[AuthOK](), kind[Error](), kind[Unsupported](), kind[ExtensionOK](), kind[NotLeader](),
		kind[PublishOK](), kind[PublishError](), kind[PublishRefused](), kind[ProducerInitOK](),
		kind[CommitOK](), kind[StateValue](),
		kind[TopologyView](), kind[StreamShardsView](), kind[CacheShardsView](), kind[ShardOwnersView](),
		kind[Subscribed](), kind[SubscribeCursorError](), kind[EventStreamHello](), kind[Event](), kind[EventBatchMessage](),
		kind[ShardMoved](), kind[SubscriptionLagged](), kind[StreamRecords](), kind[OffsetValue](),
		kind[CacheOK](), kind[CacheValue](), kind[CacheConditionResult](), kind[CacheWatchStarted](), kind[CacheEvent](),
		kind[CacheWatchLagged](), kind[CounterValue](),
		kind[GroupRecords](), kind[GroupDeadLetterList](), kind[GroupExtended](), kind[GroupPosition](), kind[GroupInfo](),
		kind[GroupDeleted](),
		kind[ShardInspectInfo](), kind[SubscriptionsListInfo](),
	)
	return kinds
}()

// IsRequest reports whether a client may send m. A server answers any other
// message with invalid_request.
func IsRequest(m Message) bool {
	k := messageKinds[m.Type()]
	return k != nil && k.request
}

// AppendMessage adds a whole frame with the message to dst. Field order is that
// of the protocol, text is not HTML-escaped, and text that is not UTF-8 has its
// bad bytes replaced.
func AppendMessage(dst []byte, m Message) []byte {
	start := len(dst)
	dst = AppendHeader(dst, 0, 0)
	if out, ok := appendHot(dst, m); ok {
		return FinishFrame(out, start)
	}
	return FinishFrame(appendFields(dst, m), start)
}

// appendFields adds the JSON of any message.
func appendFields(dst []byte, m Message) []byte {
	c := codecs.Get().(*codec)
	c.beginEncode(dst)
	c.out = append(c.out, `{"type":"`...)
	c.out = append(c.out, m.Type()...)
	c.out = append(c.out, '"')
	m.fields(c)
	dst = append(c.out, '}')
	c.release()
	return dst
}

// DecodeMessage reads the payload of a frame without flags. The message owns
// all of its memory. Errors: *[MalformedError], *[UnknownRequestError].
func DecodeMessage(payload []byte) (Message, error) {
	return decodeMessage(payload, nil)
}

// Decoder reads messages without allocating in the usual case. The message it
// returns, and everything in it, is good until the next call and as long as the
// payload is. Two kinds of field outlive both: names (of tenants, namespaces,
// streams, caches and groups), and payloads of publish, publish_batch,
// publish_idempotent, publish_if and commit. A message of more than 64 KiB owns
// all of its memory: a Decoder keeps nothing of it. The zero value is ready. A
// Decoder is for one goroutine.
type Decoder struct {
	// Names is shared with PublishBatchFrame.Decode.
	Names   Names
	made    map[int]Message
	scratch []byte
	hot     hotKinds
}

// scratchKept bounds what a Decoder keeps between messages.
const scratchKept = 64 << 10

// Decode reads the payload of a frame without flags.
func (d *Decoder) Decode(payload []byte) (Message, error) {
	if len(payload) > scratchKept {
		return decodeMessage(payload, nil)
	}
	if m, ok := d.decodeHot(payload); ok {
		return m, nil
	}
	return decodeMessage(payload, d)
}

func (d *Decoder) message(k *messageKind) Message {
	m := d.made[k.id]
	if m == nil {
		if d.made == nil {
			d.made = make(map[int]Message, 4)
		}
		m = k.make()
		d.made[k.id] = m
	}
	return m
}

func decodeMessage(payload []byte, d *Decoder) (Message, error) {
	c := codecs.Get().(*codec)
	defer c.release()
	c.beginDecode(payload, d)
	c.parse()
	if c.err != nil {
		return nil, c.malformed()
	}
	typ, ok := c.typeName()
	if !ok {
		c.fail("type", "is missing or not a string")
		return nil, c.malformed()
	}
	k := messageKinds[string(typ)]
	if k == nil {
		u := &UnknownRequestError{Type: string(typ)}
		u.RequestID, u.HasRequestID = c.requestID()
		return nil, u
	}
	var m Message
	if d != nil {
		m = d.message(k)
	} else {
		m = k.make()
	}
	m.fields(c)
	c.refuseDuplicates()
	if c.err != nil {
		return nil, c.malformed()
	}
	return m, nil
}

// Names keeps one string for each name that a peer sends again and again. It
// holds at most 1024 and starts over when full. The zero value is ready; it is
// for one goroutine.
type Names struct {
	m map[string]string
}

const namesKept = 1024

// Get returns b as a string that outlives b.
func (n *Names) Get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := n.m[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(b) > MaxNameBytes {
		return s
	}
	if n.m == nil {
		n.m = make(map[string]string, 8)
	} else if len(n.m) >= namesKept {
		clear(n.m)
	}
	n.m[s] = s
	return s
}
