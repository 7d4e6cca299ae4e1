package replica

import (
	"strconv"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// EffectType says what an Effect asks for.
type EffectType uint8

// The effects. Each comment says what the caller does and which method answers it.
const (
	// Persist stores Term and Forgetful on the disk, flushed in every fsync mode:
	// Persisted.
	Persist EffectType = iota + 1
	// Write appends Bytes, encoded records that follow Prev: the log reports Written and
	// Stable.
	Write
	// Compare says whether the log holds Prev, and how far it holds Bytes: Compared. What
	// cannot be read is not different: Failed.
	Compare
	// Cut removes the records from At on, copying them to lost/ first, flushed: WasCut.
	Cut
	// Rebase empties the log and lets it begin at At: WasReset.
	Rebase
	// Flush flushes every log of the shard: Flushed.
	Flush
	// Fetch reads encoded records from At, at most Limit bytes and at least one record,
	// with the place before them: Fetched, naming Peer.
	Fetch
	// AppendStart appends a generation-start record of Term's generation: the log
	// reports Written and Stable like any append of the leader's. Like one it is given up
	// if it is about to get its place and the replica's Term is another by then.
	AppendStart
	// Propose writes Assignment if the stored one is at Version: Proposed.
	Propose
	// ReadAssignment reads the assignment: Assigned.
	ReadAssignment
	// Trim flushes the log, so that the generation start that stays is stored before an
	// older one goes, and lets it drop whole segments below At. Nothing answers.
	Trim
	// Committed says that the mark of Log is At. Nothing answers; nor for those below.
	Committed
	// Acknowledge says that writes below At of Log may be answered as done.
	Acknowledge
	// Serve says that the replica leads and may take writes and reads. At is where
	// positions into log 0 are clamped.
	Serve
	// Resigned says that the replica no longer leads: writes without an answer have
	// Outcome, waiting reads fail.
	Resigned
	// ReadReady says that the reads up to Read may be served at At of log 0, the other
	// logs at their marks.
	ReadReady
	// ReadFailed says that the reads up to Read cannot be served here.
	ReadFailed
	// Followed says that the replica follows Peer's term from now on.
	Followed
	// Halted says that the replica takes no further part until it is reopened.
	Halted
	// SetChanged says that the set is Assignment's.
	SetChanged

	effectTypeCount
)

var effectNames = [effectTypeCount]string{"", "persist", "write", "compare", "cut", "rebase", "flush", "fetch", "append-start", "propose", "read-assignment", "trim",
	"committed", "acknowledge", "serve", "resigned", "read-ready", "read-failed", "followed", "halted", "set-changed"}

// String is the type's name in dialogues.
func (t EffectType) String() string {
	if t > 0 && t < effectTypeCount {
		return effectNames[t]
	}
	return "effect-" + strconv.Itoa(int(t))
}

// Effect is one thing the caller is to do, or to know.
type Effect struct {
	Type       EffectType
	Log        LogID
	Term       Term
	Forgetful  bool
	Prev       Place
	At         Offset
	Limit      int
	Bytes      []byte
	Peer       meta.NodeID
	Read       uint64
	Outcome    Outcome
	Reason     string
	Assignment *meta.Assignment
	Version    meta.Version
	// Blind writes generation and leader over whatever set is stored: only with
	// SetInTransaction switched off.
	Blind bool
}

// Outputs are what a step asks for. They are valid until the replica's next method
// call.
type Outputs struct {
	Messages []Message
	Effects  []Effect
}

// Take returns what the steps since the last Take ask for. The slices and the bytes in
// them are the replica's: carry out, encode or copy before the next call. (An Effect's
// Assignment is the caller's.)
func (r *Replica) Take() Outputs {
	o := Outputs{r.messages, r.effects}
	r.messages, r.spareMessages = r.spareMessages[:0], r.messages
	r.effects, r.spareEffects = r.spareEffects[:0], r.effects
	return o
}

func (r *Replica) effect(e Effect) { r.effects = append(r.effects, e) }

// send queues a message under the replica's shard. The returned pointer is valid until
// the next send.
func (r *Replica) send(t MessageType, to meta.NodeID, term Term) *Message {
	r.messages = append(r.messages, Message{
		Type: t, From: r.cfg.Node, To: to, Shard: r.cfg.Shard, Term: term, Opening: r.opening,
	})
	return &r.messages[len(r.messages)-1]
}

func (r *Replica) halt(reason string) {
	if r.role == Stopped {
		return
	}
	r.resign(reason)
	r.role = Stopped
	r.effect(Effect{Type: Halted, Reason: reason})
}

// seconds is used in reasons.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s" }
