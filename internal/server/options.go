package server

import (
	"errors"
	"fmt"
	"time"

	groups "github.com/felixlog/felix/internal/queue"
)

// Limits bound what clients can make the server hold (docs/operations). Zero
// fields take their defaults, except where a field says that zero switches it off.
type Limits struct {
	// Connections is how many clients may be connected, over both transports; more are
	// refused in the handshake. 8192.
	Connections int
	// AuthTimeout is how long a connection may stay without an authenticated stream,
	// handshake included. 10 s; negative: for ever.
	AuthTimeout time.Duration
	// PreAuthFrameBytes bounds the payload of the first frame of a stream. 64 KiB.
	PreAuthFrameBytes int
	// PreAuthStreams is how many streams of a connection are read before one of them
	// has authenticated; more wait unread. 16.
	PreAuthStreams int
	// FrameBytes bounds the payload of a frame after that. 16 MiB.
	FrameBytes int
	// PublishWindow is how many acknowledged publishes of a stream may be unanswered:
	// at that depth the stream is not read until one is answered. 256.
	PublishWindow int
	// UnackedWindow is the same for publishes that are never answered. 4096.
	UnackedWindow int
	// InFlightBytes bounds the payload of a connection's publishes that are not yet
	// settled, 24 bytes a record added: at that depth its streams are not read. One larger publish is let
	// through alone. 16 MiB.
	InFlightBytes int
	// UnreadBytes is how many bytes of answers may wait for a client to read them, or for
	// their turn, before its stream is not read any more. 256 KiB.
	UnreadBytes int
	// Streams is how many streams a client may have open each way on one QUIC
	// connection. 1024.
	Streams int
	// Subscriptions is how many subscriptions and watches a connection may have; more
	// are answered limit_exceeded. 1000.
	Subscriptions int
	// PollRecords bounds the records of one poll of a group. 1000.
	PollRecords int
	// ListedLetters bounds the offsets of one group_dead_letter_list, which has no pages.
	// 100,000.
	ListedLetters int
	// IdleTimeout ends a QUIC connection from which nothing came, keep-alives included.
	// 30 s.
	IdleTimeout time.Duration
	// KeepAlive is how often a silent connection is spoken to. 5 s on QUIC; TCP probes
	// are its operating system's, at the same interval.
	KeepAlive time.Duration
}

// DefaultListedLetters is the default of Limits.ListedLetters: about 2 MiB of answer.
const DefaultListedLetters = 100_000

// leastFrameBytes is the smallest frame limit an auth with a usual token fits in.
const leastFrameBytes = 4 << 10

func (l Limits) withDefaults() Limits {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&l.Connections, 8192)
	set(&l.PreAuthFrameBytes, 64<<10)
	set(&l.PreAuthStreams, 16)
	set(&l.FrameBytes, 16<<20)
	set(&l.PublishWindow, 256)
	set(&l.UnackedWindow, 4096)
	set(&l.InFlightBytes, 16<<20)
	set(&l.UnreadBytes, 256<<10)
	set(&l.Streams, 1024)
	set(&l.Subscriptions, 1000)
	set(&l.PollRecords, groups.MaxPollRecords)
	set(&l.ListedLetters, DefaultListedLetters)
	if l.AuthTimeout == 0 {
		l.AuthTimeout = 10 * time.Second
	}
	if l.IdleTimeout == 0 {
		l.IdleTimeout = 30 * time.Second
	}
	if l.KeepAlive == 0 {
		l.KeepAlive = 5 * time.Second
	}
	return l
}

func (l Limits) validate() error {
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"connections", l.Connections, 1},
		{"pre-auth frame bytes", l.PreAuthFrameBytes, leastFrameBytes},
		{"pre-auth streams", l.PreAuthStreams, 1},
		{"frame bytes", l.FrameBytes, l.PreAuthFrameBytes},
		{"publish window", l.PublishWindow, 1},
		{"unacked window", l.UnackedWindow, 1},
		{"in-flight bytes", l.InFlightBytes, 1},
		{"unread bytes", l.UnreadBytes, 1},
		{"streams", l.Streams, 1},
		{"subscriptions", l.Subscriptions, 1},
		{"poll records", l.PollRecords, 1},
		{"listed letters", l.ListedLetters, 1},
	} {
		if f.value < f.least {
			return fmt.Errorf("server limit %s is %d: at least %d", f.name, f.value, f.least)
		}
	}
	if l.IdleTimeout < 0 || l.KeepAlive < 0 || l.KeepAlive >= l.IdleTimeout {
		return errors.New("server limits: the keep-alive must be shorter than the idle timeout")
	}
	return nil
}

// Refusal is why the server refused or ended something: the label of a counter.
type Refusal string

// The refusals.
const (
	RefusedConnections    Refusal = "connections"     // the cap on connections
	RefusedHandshake      Refusal = "handshake"       // TLS or QUIC did not come about
	RefusedAuthTimeout    Refusal = "auth_timeout"    // no authenticated stream in time
	RefusedPreAuthFrame   Refusal = "preauth_frame"   // first frame over the limit
	RefusedPreAuthStreams Refusal = "preauth_streams" // more streams than are read before auth
	RefusedFrameSize      Refusal = "frame_size"      // a frame over the limit
	RefusedFrame          Refusal = "frame"           // not a frame, or cut short
	RefusedRequest        Refusal = "request"         // malformed or out of place
	RefusedUnsupported    Refusal = "unsupported"     // a request that is not served
	RefusedToken          Refusal = "token"
	RefusedForbidden      Refusal = "forbidden"
	RefusedSubscriptions  Refusal = "subscriptions" // the cap on subscriptions of a connection
	RefusedDraining       Refusal = "draining"
	RefusedInternal       Refusal = "internal" // a request met a defect of ours
)

// Pause is why a stream is not being read for a while: the label of a counter.
type Pause string

// The pauses.
const (
	PausedWindow   Pause = "publish_window"  // as many publishes unanswered as granted
	PausedWrites   Pause = "earlier_writes"  // a read waits for the writes before it
	PausedInFlight Pause = "in_flight_bytes" // the connection's bytes in flight
	PausedUnread   Pause = "answers_unread"  // the client does not read its answers
	PausedTurn     Pause = "answers_turn"    // too much waits behind an answer that is not there yet
)

// Events are told what happens, for metrics and logs. Every field is optional; none
// may block, and all may be called from many goroutines at once.
type Events struct {
	// OnConnect and OnDisconnect frame a connection; transport is "quic" or "tcp".
	OnConnect    func(transport string)
	OnDisconnect func(transport string)
	// OnRefused counts refusals.
	OnRefused func(Refusal)
	// OnPaused counts the times a stream was not read.
	OnPaused func(Pause)
	// OnPublished counts settled publishes.
	OnPublished func(Published)
	// OnDelivered counts what subscriptions wrote.
	OnDelivered func(events, bytes int)
}

// Published is a publish that was settled.
type Published struct {
	Records int
	Bytes   int // of payload
	// Took is the time from its hand-over to the shard to its outcome, zero for one that
	// was refused before.
	Took    time.Duration
	Durable bool // its stream is
	Err     error
}

func (e *Events) refused(r Refusal) {
	if e.OnRefused != nil {
		e.OnRefused(r)
	}
}

func (e *Events) paused(p Pause) {
	if e.OnPaused != nil {
		e.OnPaused(p)
	}
}

func callTransport(f func(string), transport string) {
	if f != nil {
		f(transport)
	}
}
