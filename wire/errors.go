package wire

import (
	"errors"
	"fmt"
	"strconv"
)

// Refusals of a frame on its header alone. The stream is unusable afterwards.
var (
	// ErrBadMagic: the peer does not speak FLX1, or lost the frame boundary.
	ErrBadMagic = errors.New("wire: frame header: wrong magic")
	// ErrBadVersion: the frame has a version other than 1.
	ErrBadVersion = errors.New("wire: frame header: unsupported version")
	// ErrEmptyFrame: the payload length is 0, which no layout has.
	ErrEmptyFrame = errors.New("wire: frame header: empty payload")
)

// FrameTooLargeError refuses a frame whose payload is longer than the reader's limit.
type FrameTooLargeError struct {
	// Length and Max are bytes of payload.
	Length, Max uint32
}

// Error names the length and the limit.
func (e *FrameTooLargeError) Error() string {
	return fmt.Sprintf("wire: frame of %d bytes is too large, max=%d", e.Length, e.Max)
}

// MalformedError refuses a payload that does not follow the protocol.
type MalformedError struct {
	// What is the message type or layout, as far as it is known.
	What string
	// Detail says which part is wrong and how.
	Detail string
	// RequestID is the request's, when it could be read all the same, so that
	// the refusal can name it.
	RequestID    uint64
	HasRequestID bool
	// Limit: it follows the protocol, and is more than is taken at once.
	Limit bool
}

// Code is what a refusal is answered with.
func (e *MalformedError) Code() Code {
	if e.Limit {
		return CodeLimitExceeded
	}
	return CodeInvalidRequest
}

// Error names the layout and the part.
func (e *MalformedError) Error() string {
	if e.Limit && e.What != "" {
		return "wire: " + e.What + ": " + e.Detail
	}
	if e.What == "" {
		return "wire: malformed message: " + e.Detail
	}
	return "wire: malformed " + e.What + ": " + e.Detail
}

// UnknownRequestError is a well-formed message of a type that is not known.
type UnknownRequestError struct {
	Type         string
	RequestID    uint64
	HasRequestID bool
}

// Error names the type, shortened.
func (e *UnknownRequestError) Error() string {
	const most = 64
	t := e.Type
	if len(t) > most {
		t = t[:most] + "..."
	}
	return "wire: unknown message type " + strconv.Quote(t)
}
