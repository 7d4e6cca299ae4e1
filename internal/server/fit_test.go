package server

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/wire"
)

// Whatever the records are like, the answer that carries those that fit is within the
// frame, and one more record that costs as much as it may would not be sent for nothing:
// an answer is not cut to a fraction of its frame.
func TestWhatFitsIsWithinTheFrame(t *testing.T) {
	header := len(wire.AppendHeader(nil, 0, 0))
	for name, c := range map[string]struct {
		payload   int
		publisher string
	}{
		"empty":                {0, ""},
		"small":                {45, ""},
		"with a publisher":     {45, strings.Repeat("p", 255)},
		"hard to write":        {1, strings.Repeat("\x01", 255)},
		"not text":             {1, strings.Repeat("\xff", 255)},
		"as large as may be":   {48 << 10, strings.Repeat("\x01", 255)},
		"larger than it holds": {300 << 10, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, frame := range []int{4 << 10, 128 << 10, 16 << 20, 64 << 20} {
				s := &Server{limits: Limits{FrameBytes: frame}}
				most := min(frame, wire.DefaultMaxFrame)
				payload := bytes.Repeat([]byte{0xff}, c.payload)
				n := s.fitting(200_000, func(int) int { return costOf(payload, []byte(c.publisher)) })
				poll := &wire.GroupRecords{RequestID: math.MaxUint64}
				read := &wire.StreamRecords{RequestID: math.MaxUint64, NextOffset: math.MaxUint64}
				for range n {
					poll.Records = append(poll.Records, wire.GroupRecord{Offset: math.MaxUint64, Payload: payload, Attempts: math.MaxUint32,
						SkippedBefore: math.MaxUint64, Publisher: c.publisher, TimestampMicros: math.MaxUint64, HasTimestampMicros: true})
					read.Records = append(read.Records, wire.StreamRecord{Offset: math.MaxUint64, Payload: payload, Publisher: c.publisher, TimestampMicros: math.MaxUint64})
				}
				polled := len(wire.AppendMessage(nil, poll)) - header
				require.LessOrEqual(t, len(wire.AppendMessage(nil, read))-header, polled)
				if n > 1 {
					require.LessOrEqual(t, polled, most)
					require.Greater(t, polled, most/4)
				}
			}
		})
	}
}
