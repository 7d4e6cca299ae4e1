package replica

import (
	"strconv"
	"time"

	"github.com/felixlog/felix/internal/meta"
)

// MessageType says what a Message is.
type MessageType uint8

// The messages. Requests carry the term they are sent under; answers carry the term
// they answer and the opening of who answers.
const (
	// Append ships records from leader to follower; without records it asks whether
	// the follower has Prev (a probe).
	Append MessageType = iota + 1
	// Appended answers Append: Match is verified and durable, or Refused says why not.
	Appended
	// Beat carries marks and heads, and asks for a read round or a lease.
	Beat
	// BeatAnswer answers Beat.
	BeatAnswer
	// Fence asks a replica to refuse older leaders and to say what it holds.
	Fence
	// FenceAnswer answers Fence.
	FenceAnswer
	// Pull asks the replica with the furthest log for the records after Prev.
	Pull
	// Pulled answers Pull.
	Pulled
	// Reset tells a follower that what it would need is trimmed: begin at Match.
	Reset
	// Forward carries a request from the broker that took it to the leader (rule 12).
	Forward
	// ForwardAnswer answers it.
	ForwardAnswer

	messageTypeCount
)

var messageNames = [messageTypeCount]string{"", "append", "appended", "beat", "beat-answer", "fence", "fence-answer", "pull", "pulled", "reset", "forward", "forward-answer"}

// String is the type's name in dialogues.
func (t MessageType) String() string {
	if t > 0 && t < messageTypeCount {
		return messageNames[t]
	}
	return "message-" + strconv.Itoa(int(t))
}

// Refusal is why an Append, Pull, Beat or Fence was not followed.
type Refusal uint8

// Refusals.
const (
	// NotRefused: it was followed.
	NotRefused Refusal = iota
	// RefusedOlder: a higher term was accepted; Accepted says which.
	RefusedOlder
	// RefusedGap: the follower's log ends before Prev; Tail says where.
	RefusedGap
	// RefusedPlace: the record before differs; At, Start and Tail say where to go back to.
	RefusedPlace
	// RefusedBusy: the follower is cutting or comparing; send again when it answers for that.
	RefusedBusy
	// RefusedCommitted: following would cut committed records. The replica halts.
	RefusedCommitted
	// RefusedLater: a lease is still granted to another leader; ask again.
	RefusedLater
	// Introduced: the term was just accepted, or its leader has not named this opening yet;
	// Tail and At say where the log stands.
	Introduced
	// RefusedUnable: the replica is halted or cannot read its log.
	RefusedUnable

	refusalCount
)

var refusalNames = [refusalCount]string{"ok", "older", "gap", "place", "busy", "committed", "later", "introduced", "unable"}

// String is the refusal's name in dialogues.
func (r Refusal) String() string {
	if r < refusalCount {
		return refusalNames[r]
	}
	return "refusal-" + strconv.Itoa(int(r))
}

// LogVote is what a replica says of one log when it is fenced.
type LogVote struct {
	Last    Generation // of the newest generation start in the log
	Head    Offset
	Tail    Offset
	Mark    Offset // the highest committed mark it knows
	Unknown bool   // it cannot say Last
}

// LogMark is what a leader says of one log in a Beat.
type LogMark struct {
	Mark Offset // committed mark
	Head Offset // retention head
	Tail Offset // one past the last record
}

// Message is one message between two replicas of a shard. It is one struct for all
// types, so that queues of messages need no allocation; the fields a type uses are those
// its codec writes. Bytes, Votes and Marks may alias buffers of the sender's replica:
// see Take.
type Message struct {
	Type     MessageType
	From, To meta.NodeID // the connection's; not encoded
	Shard    ShardID

	Term Term
	// Opening is that of the one who answers.
	Opening Opening
	// Peer is the count of the receiver's opening as the sender knows it (zero: not
	// yet). A follower counts itself level only by a message that names its opening.
	Peer uint64

	Log   LogID
	Prev  Place  // the place the records follow; in an answer, the place asked about
	Mark  Offset // committed mark of Log
	Head  Offset // retention head of Log
	Tail  Offset // one past the last record: the leader's, an answerer's own
	Match Offset // Appended: verified and durable up to here; Pulled: the next offset; Reset: the base
	Start Offset // Refused: where the answerer's generation At began
	At    Generation
	Bytes []byte // encoded records

	Refused  Refusal
	Accepted Term // RefusedOlder: what was accepted

	Round     uint64        // Beat: the read round; Fence: the fencing round
	SentAt    time.Duration // Beat: the sender's clock, echoed by the answer
	Lease     bool          // Beat: asks for a lease; BeatAnswer: it is granted
	Forgetful bool          // FenceAnswer
	Marks     []LogMark     // Beat
	Votes     []LogVote     // FenceAnswer

	Forward *ForwardBody // Forward, ForwardAnswer
}

// ForwardBody is what a forward carries besides its payload: who asks, and by what
// right. Forwards of one publish stream keep their order by Sequence; a forward handed
// to the transport and unanswered has an unknown outcome.
type ForwardBody struct {
	Origin     meta.NodeID // the broker that took the request
	Sequence   uint64      // of Origin's publish stream, from 1
	Principal  string      // who published
	Permission string      // the permission that was granted
	Outcome    Outcome     // of an answer
	Offset     Offset      // of an answer: the first record's
}

// Outcome is how a write ended (rule 11).
type Outcome uint8

// Outcomes.
const (
	OutcomeNone      Outcome = iota // not answered
	OutcomeDone                     // stored as the acknowledgement promises
	OutcomeNotDone                  // it had no place
	OutcomeUnknown                  // it may be stored
	OutcomeNotLeader                // it had no place: ask another broker

	outcomeCount
)

var outcomeNames = [outcomeCount]string{"none", "done", "not-done", "unknown", "not-leader"}

// String is the outcome's name.
func (o Outcome) String() string {
	if o < outcomeCount {
		return outcomeNames[o]
	}
	return "outcome-" + strconv.Itoa(int(o))
}
