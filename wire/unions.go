package wire

// The fields of this file take one of several forms.

// putText writes a field with text that needs no escape.
func (c *codec) putText(name, value string) {
	c.key(name)
	c.out = append(c.out, '"')
	c.out = append(c.out, value...)
	c.out = append(c.out, '"')
}

// choice is required text of two values; b says whether it is the second.
func (c *codec) choice(name string, b *bool, first, second string) {
	if c.writing {
		if *b {
			first = second
		}
		c.putText(name, first)
		return
	}
	*b = false
	s := c.need(name)
	if s == nil {
		return
	}
	switch c.word(s) {
	case first:
	case second:
		*b = true
	default:
		c.fail(name, "is neither "+first+" nor "+second)
	}
}

// word returns the text of a string field, "" for any other value.
func (c *codec) word(s *span) string {
	if s.first != '"' {
		return ""
	}
	return string(c.stringBytes(s))
}

func (c *codec) ack(name string, p *AckMode) {
	if c.writing {
		if *p != AckNone {
			c.putText(name, p.String())
		}
		return
	}
	*p = AckNone
	if s := c.findSet(name); s != nil {
		switch c.word(s) {
		case "none":
		case "per_message":
			*p = AckPerMessage
		case "per_batch":
			*p = AckPerBatch
		default:
			c.fail(name, "is not none, per_message or per_batch")
		}
	}
}

func (c *codec) routing(name string, p *Routing, has *bool) {
	if c.writing {
		if *has {
			c.putText(name, p.String())
		}
		return
	}
	*p, *has = RoutingModulo, false
	if s := c.findSet(name); s != nil {
		r, ok := ParseRouting(c.word(s))
		if !ok || s.first != '"' {
			c.fail(name, "is neither modulo nor jump_hash")
			return
		}
		*p, *has = r, true
	}
}

// taggedUint writes {"name":{"tag":v}}.
func (c *codec) taggedUint(name, tag string, v uint64) {
	c.key(name)
	c.out = append(c.out, '{')
	c.begun = false
	c.putUint(tag, v)
	c.out = append(c.out, '}')
}

func (c *codec) start(name string, p *Start, required bool) {
	if c.writing {
		switch p.Kind {
		case StartEarliest:
			c.putText(name, "earliest")
		case StartOffset:
			c.taggedUint(name, "offset", p.Offset)
		case StartLatest:
			c.putText(name, "latest")
		default:
			if required {
				c.putText(name, "latest")
			}
		}
		return
	}
	*p = Start{}
	s := c.findSet(name)
	if s == nil {
		if required {
			c.fail(name, "is missing")
		}
		return
	}
	switch {
	case s.first == '{':
		p.Kind = StartOffset
		outer := c.enter(s.start)
		c.u64("offset", &p.Offset)
		c.leave(outer)
	case c.word(s) == "earliest":
		p.Kind = StartEarliest
	case c.word(s) == "latest":
		p.Kind = StartLatest
	default:
		c.fail(name, "is not latest, earliest or an offset")
	}
}

func (c *codec) condition(name string, p *CacheCondition) {
	if c.writing {
		if p.Absent {
			c.putText(name, "absent")
			return
		}
		c.taggedUint(name, "version", p.Version)
		return
	}
	*p = CacheCondition{}
	s := c.need(name)
	switch {
	case s == nil:
	case s.first == '{':
		outer := c.enter(s.start)
		c.u64("version", &p.Version)
		c.leave(outer)
	case c.word(s) == "absent":
		p.Absent = true
	default:
		c.fail(name, "is neither absent nor a version")
	}
}

func (c *codec) refusal(name string, m *PublishRefused) {
	if c.writing {
		c.putRefusal(name, m)
		return
	}
	m.Reason, m.Expected, m.Tail, m.NodeID, m.Addr = "", 0, 0, "", ""
	s := c.need(name)
	if s == nil {
		return
	}
	if s.first == '"' {
		m.Reason = RefusedReason(c.word(s))
		return
	}
	if s.first != '{' {
		c.fail(name, "is neither text nor an object")
		return
	}
	outer := c.enter(s.start)
	c.readRefusal(m)
	c.leave(outer)
	if m.Reason == "" {
		c.fail(name, "is an object without a known reason")
	}
}

func (c *codec) putRefusal(name string, m *PublishRefused) {
	tagged := m.Reason == RefusedSequenceGap || m.Reason == RefusedOffsetMismatch || m.Reason == RefusedNotLeader
	if !tagged {
		c.key(name)
		c.out = appendString(c.out, string(m.Reason))
		return
	}
	c.key(name)
	c.out = append(c.out, '{')
	c.begun = false
	switch m.Reason {
	case RefusedSequenceGap:
		c.taggedUint(string(m.Reason), "expected", m.Expected)
	case RefusedOffsetMismatch:
		c.taggedUint(string(m.Reason), "tail", m.Tail)
	default:
		c.key(string(m.Reason))
		c.out = append(c.out, '{')
		c.begun = false
		c.text("node_id", &m.NodeID)
		c.textDefault("addr", &m.Addr)
		c.out = append(c.out, '}')
	}
	c.out = append(c.out, '}')
	c.begun = true
}

func (c *codec) readRefusal(m *PublishRefused) {
	for _, reason := range [...]RefusedReason{RefusedSequenceGap, RefusedOffsetMismatch, RefusedNotLeader} {
		s := c.find(string(reason))
		if s == nil {
			continue
		}
		if m.Reason != "" || s.first != '{' {
			c.fail("reason", "is not one object by the name of the reason")
			return
		}
		m.Reason = reason
		outer := c.enter(s.start)
		switch reason {
		case RefusedSequenceGap:
			c.u64("expected", &m.Expected)
		case RefusedOffsetMismatch:
			c.u64("tail", &m.Tail)
		default:
			c.text("node_id", &m.NodeID)
			c.textDefault("addr", &m.Addr)
		}
		c.leave(outer)
	}
}

// failure is code, retry and detail, all absent when no code is set.
func (c *codec) failure(f *Failure) {
	if c.writing {
		c.putFailure(f)
		return
	}
	f.Code, f.CodeName, f.Retry, f.Reason, f.RetryAfter = 0, "", 0, "", 0
	if s := c.findSet("code"); s != nil {
		name := c.textAt(s, "code", textOwn)
		if code, ok := ParseCode(name); ok {
			f.Code = code
		} else {
			f.CodeName = name
		}
	}
	if s := c.findSet("retry"); s != nil {
		f.Retry = ParseRetry(c.textAt(s, "retry", textOwn))
	}
	s := c.findSet("detail")
	if s == nil {
		return
	}
	if s.first != '{' {
		c.fail("detail", "is not an object")
		return
	}
	outer := c.enter(s.start)
	c.textDefault("reason", &f.Reason)
	var ms uint64
	c.u64Default("retry_after_ms", &ms)
	f.RetryAfter = fromMillis(ms)
	c.leave(outer)
}

func (c *codec) putFailure(f *Failure) {
	if f.Code == 0 && f.CodeName == "" {
		return
	}
	name := f.CodeName
	if f.Code != 0 {
		name = f.Code.String()
	}
	c.key("code")
	c.out = appendString(c.out, name)
	if f.Retry != 0 {
		c.putText("retry", f.Retry.String())
	}
	if !f.hasDetail() {
		return
	}
	c.key("detail")
	c.out = append(c.out, '{')
	c.begun = false
	c.textDefault("reason", &f.Reason)
	ms := millis(f.RetryAfter)
	c.u64Default("retry_after_ms", &ms)
	c.out = append(c.out, '}')
	c.begun = true
}
