package server

import (
	"encoding/base64"

	"github.com/felixlog/felix/wire"
)

// What an answer with records takes at the most beside payloads and publishers: of each
// record the names of its fields, offset, attempts and time; of all the type and an id.
const (
	recordCost = 192
	answerCost = 256
)

// fitting is how many of n records one answer carries, each with its cost, at least one:
// several have the room of a frame that the broker and a client with its defaults take,
// one that is larger has a frame for itself.
func (s *Server) fitting(n int, cost func(int) int) int {
	room := min(s.limits.FrameBytes, wire.DefaultMaxFrame) - answerCost
	for i := range n {
		if room -= cost(i); room < 0 && i > 0 {
			return i
		}
	}
	return n
}

// costOf is what a record takes of an answer at the most.
func costOf(payload, publisher []byte) int {
	return recordCost + base64.StdEncoding.EncodedLen(len(payload)) + textCost(publisher)
}

// letterCost is what a dead letter takes of an answer at the most: the body of the answer
// is in base64 itself.
func letterCost(payload []byte) int {
	return base64.StdEncoding.EncodedLen(costOf(payload, nil))
}

// largestLetter is how much of its payload a dead letter has with it: all that fits an
// answer. What is left out of a larger one is said.
func (s *Server) largestLetter() int {
	body := base64.StdEncoding.DecodedLen((min(s.limits.FrameBytes, wire.DefaultMaxFrame) - answerCost) / 4 * 4)
	return max(base64.StdEncoding.DecodedLen((body-recordCost)/4*4)-3, 0)
}

// textCost is what a text takes in JSON at the most.
func textCost(text []byte) int {
	n := len(text)
	for _, c := range text {
		if c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
			n += len(`\u0000`) - 1
		}
	}
	return n
}
