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
