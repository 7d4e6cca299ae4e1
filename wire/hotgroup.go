package wire

import "math"

// The messages of a busy group, as hot.go has those of a cache.

const (
	headGroupPoll    = `{"type":"group_poll","tenant_id":`
	headGroupAck     = `{"type":"group_ack","tenant_id":`
	headGroupRecords = `{"type":"group_records","records":[`
	headGroupRecord  = `{"offset":`
	keyStream        = `,"stream":`
	keyShard         = `,"shard":`
	keyGroup         = `,"group":`
	keyMaxRecords    = `,"max_records":`
	keyWait          = `,"wait_ms":`
	keyConsumer      = `,"consumer":`
	keyReclaim       = `,"reclaim":true`
	keyVisibility    = `,"visibility_ms":`
	keyOffset        = `,"offset":`
	keyPayload       = `,"payload":`
	keyAttempts      = `,"attempts":`
	keySkippedBefore = `,"skipped_before":`
	keyPublisher     = `,"publisher":`
	keyTimestamp     = `,"timestamp_micros":`
)

func appendGroupPoll(dst []byte, m *GroupPoll) []byte {
	dst = appendGroupRef(append(dst, headGroupPoll...), &m.GroupRef)
	dst = appendUint(dst, keyMaxRecords, uint64(m.MaxRecords), true)
	dst = appendUint(dst, keyWait, m.WaitMillis, m.WaitMillis != 0)
	if m.HasConsumer {
		dst = appendString(append(dst, keyConsumer...), m.Consumer)
	}
	if m.Reclaim {
		dst = append(dst, keyReclaim...)
	}
	dst = appendUint(dst, keyVisibility, m.VisibilityMillis, m.VisibilityMillis != 0)
	return appendUint(dst, keyRequestID, m.RequestID, true)
}

func appendGroupAck(dst []byte, m *GroupAck) []byte {
	dst = appendGroupRef(append(dst, headGroupAck...), &m.GroupRef)
	dst = appendUint(dst, keyOffset, m.Offset, true)
	return appendUint(dst, keyRequestID, m.RequestID, true)
}

func appendGroupRef(dst []byte, m *GroupRef) []byte {
	dst = appendString(dst, m.Tenant)
	dst = appendString(append(dst, keyNamespace...), m.Namespace)
	dst = appendString(append(dst, keyStream...), m.Stream)
	dst = appendUint(dst, keyShard, uint64(m.Shard), true)
	return appendString(append(dst, keyGroup...), m.Group)
}

func appendGroupRecords(dst []byte, m *GroupRecords) []byte {
	dst = append(dst, headGroupRecords...)
	for i := range m.Records {
		if i > 0 {
			dst = append(dst, ',')
		}
		rec := &m.Records[i]
		dst = appendUint(dst, headGroupRecord, rec.Offset, true)
		dst = appendBase64(append(dst, keyPayload...), rec.Payload)
		dst = appendUint(dst, keyAttempts, uint64(rec.Attempts), rec.Attempts != 0)
		dst = appendUint(dst, keySkippedBefore, rec.SkippedBefore, rec.SkippedBefore != 0)
		if rec.Publisher != "" {
			dst = appendString(append(dst, keyPublisher...), rec.Publisher)
		}
		dst = appendUint(dst, keyTimestamp, rec.TimestampMicros, rec.HasTimestampMicros)
		dst = append(dst, '}')
	}
	return appendUint(append(dst, ']'), keyRequestID, m.RequestID, true)
}

// decodeHotGroup is decodeHot of what begins with a group's type.
func (d *Decoder) decodeHotGroup(r *layout) (Message, bool) {
	switch {
	case r.skip(headGroupPoll):
		m := &d.hot.poll
		r.groupRef(d, &m.GroupRef)
		r.literal(keyMaxRecords)
		m.MaxRecords = r.uint32()
		m.WaitMillis, _ = r.uintHas(keyWait)
		m.Consumer, m.HasConsumer = r.nameHas(d, keyConsumer)
		m.Reclaim = r.skip(keyReclaim)
		m.VisibilityMillis, _ = r.uintHas(keyVisibility)
		r.literal(keyRequestID)
		m.RequestID = r.uint()
		return m, r.end()
	case r.skip(headGroupAck):
		m := &d.hot.ack
		r.groupRef(d, &m.GroupRef)
		r.literal(keyOffset)
		m.Offset = r.uint()
		r.literal(keyRequestID)
		m.RequestID = r.uint()
		return m, r.end()
	case r.skip(headGroupRecords):
		m := &d.hot.records
		m.Records = m.Records[:0]
		for more := !r.skip("]"); more; more = !r.failed && r.skip(",") {
			m.Records = append(m.Records, r.groupRecord(d))
		}
		if len(m.Records) > 0 {
			r.literal("]")
		}
		r.literal(keyRequestID)
		m.RequestID = r.uint()
		return m, r.end()
	}
	return nil, false
}

func (r *layout) groupRef(d *Decoder, m *GroupRef) {
	m.Tenant = r.name(d)
	r.literal(keyNamespace)
	m.Namespace = r.name(d)
	r.literal(keyStream)
	m.Stream = r.name(d)
	r.literal(keyShard)
	m.Shard = r.uint32()
	r.literal(keyGroup)
	m.Group = r.name(d)
}

func (r *layout) groupRecord(d *Decoder) (rec GroupRecord) {
	r.literal(headGroupRecord)
	rec.Offset = r.uint()
	r.literal(keyPayload)
	rec.Payload = r.base64(d)
	if r.skip(keyAttempts) {
		rec.Attempts = r.uint32()
	}
	rec.SkippedBefore, _ = r.uintHas(keySkippedBefore)
	rec.Publisher, _ = r.nameHas(d, keyPublisher)
	rec.TimestampMicros, rec.HasTimestampMicros = r.uintHas(keyTimestamp)
	r.literal("}")
	return rec
}

func (r *layout) nameHas(d *Decoder, key string) (name string, has bool) {
	if !r.skip(key) {
		return "", false
	}
	return r.name(d), true
}

func (r *layout) uint32() uint32 {
	v := r.uint()
	if v > math.MaxUint32 {
		r.failed = true
	}
	return uint32(v)
}
