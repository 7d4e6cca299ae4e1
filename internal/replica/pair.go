package replica

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// BeatEvery is how often a node is heard of by another although nothing is to be said.
const BeatEvery = time.Second

// MaxFrameMessages bounds the messages of one frame.
const MaxFrameMessages = 4096

// Pair gathers what one node says to another about all their shards, so that beats of a
// thousand shards travel as one frame, and a thousand shards at rest cost one empty
// frame every BeatEvery. Records are not gathered: an Append goes by itself.
//
// Like a Replica it is a value that is told things; it owns no connection and no timer.
type Pair struct {
	Peer meta.NodeID

	frame  []byte
	count  int
	sentAt time.Duration
	begun  bool
}

// Add takes a message that may wait for others: Beat, BeatAnswer, Fence, FenceAnswer,
// Appended. It reports false for one that goes by itself.
func (p *Pair) Add(m *Message) bool {
	switch m.Type {
	case Beat, BeatAnswer, Fence, FenceAnswer, Appended:
	default:
		return false
	}
	if p.count == MaxFrameMessages {
		return false
	}
	if p.count == 0 {
		p.frame = append(p.frame[:0], CodecVersion, 0, 0, 0)
	}
	p.frame = binary.BigEndian.AppendUint32(p.frame, uint32(m.Size()))
	p.frame = m.Append(p.frame)
	p.count++
	return true
}

// Flush returns the frame to send now: what was added, or an empty one when the peer was
// told nothing for BeatEvery; nil when there is nothing to send. The bytes are valid
// until the next Add.
func (p *Pair) Flush(now time.Duration) []byte {
	if p.count == 0 {
		if p.begun && now-p.sentAt < BeatEvery {
			return nil
		}
		p.frame = append(p.frame[:0], CodecVersion, 0, 0, 0)
	}
	binary.BigEndian.PutUint16(p.frame[2:], uint16(p.count))
	p.count, p.sentAt, p.begun = 0, now, true
	return p.frame
}

// Next is when Flush has something to send at the latest.
func (p *Pair) Next() time.Duration {
	if p.count > 0 || !p.begun {
		return 0
	}
	return p.sentAt + BeatEvery
}

// DecodeFrame reads a frame and hands each message to visit, which may keep its bytes
// only as long as b. The message is reused. The error is a *CodecError.
func DecodeFrame(b []byte, visit func(*Message)) error {
	if len(b) < 4 {
		return &CodecError{Detail: fmt.Sprintf("frame of %d bytes", len(b))}
	}
	if b[0] != CodecVersion || b[1] != 0 {
		return &CodecError{Detail: fmt.Sprintf("frame of version %d.%d, this broker speaks %d.0", b[0], b[1], CodecVersion)}
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n > MaxFrameMessages {
		return &CodecError{Detail: fmt.Sprintf("frame of %d messages, at most %d", n, MaxFrameMessages)}
	}
	b = b[4:]
	var m Message
	for i := range n {
		if len(b) < 4 {
			return &CodecError{Detail: fmt.Sprintf("frame ends before message %d of %d", i+1, n)}
		}
		size := int(binary.BigEndian.Uint32(b))
		if size > len(b)-4 {
			return &CodecError{Detail: fmt.Sprintf("message %d of %d bytes in a frame with %d left", i+1, size, len(b)-4)}
		}
		if err := m.Decode(b[4 : 4+size]); err != nil {
			return err
		}
		visit(&m)
		b = b[4+size:]
	}
	if len(b) > 0 {
		return &CodecError{Detail: fmt.Sprintf("%d bytes behind the last message of a frame", len(b))}
	}
	return nil
}
