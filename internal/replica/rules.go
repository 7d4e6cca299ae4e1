package replica

import "strconv"

// Rule is one safety clause of the protocol. All hold; tests switch single ones off to
// show that they would notice. docs/replication.md says which clauses have no switch.
type Rule uint8

// The clauses, by the rule of docs/replication.md they belong to.
const (
	// NamePlace (1): a follower appends only at its own tail, or where it holds records.
	NamePlace Rule = iota
	// NameGeneration (1): and only where the record before has the same generation.
	NameGeneration
	// NameChecksum (1): and the same checksum.
	NameChecksum
	// AnswerDurable (1): a follower answers what is durable under the policy.
	AnswerDurable
	// AnswerVerified (1): and only what it compared with this leader's log.
	AnswerVerified
	// CompareOverlap (1): records it already has are compared byte for byte.
	CompareOverlap
	// PersistGeneration (2): an accepted generation is on disk before anything is
	// stored or answered under it.
	PersistGeneration
	// RefuseOlder (2): leaders of generations below the accepted one are refused.
	RefuseOlder
	// NewGeneration (2): a reopened replica leads only at a generation it asked for.
	NewGeneration
	// ResignOnFailure (2): a leader whose write or flush failed after shipping resigns.
	ResignOnFailure
	// GenerationFromLog (3): the last generation of a log is that of its records, not
	// the accepted one.
	GenerationFromLog
	// UnknownIsLearner (3): a replica that cannot say its last generation has no vote.
	UnknownIsLearner
	// SetInTransaction (4): generation and set come from one transaction.
	SetInTransaction
	// FenceMajority (4): a majority is fenced before anything is appended.
	FenceMajority
	// AdoptFurthest (4): the new leader takes the furthest log of those fenced.
	AdoptFurthest
	// FurthestByGeneration (4): furthest by last generation first, then by length.
	FurthestByGeneration
	// CutDivergent (4): its own suffix that is not in the adopted log is cut.
	CutDivergent
	// ServeAfterStart (4): it serves once its generation-start record is committed.
	ServeAfterStart
	// CommitOwnGeneration (4): only records from the generation start on are counted
	// towards the mark.
	CommitOwnGeneration
	// FenceAllLogs (4): a fence covers every log of the shard.
	FenceAllLogs
	// ClampPositions (4): group positions end at the stream's committed tail.
	ClampPositions
	// CutWhereDiffers (5): a log is cut only where it was compared and differs.
	CutWhereDiffers
	// KeepCommitted (5): and never below the mark: a replica that would have to stops.
	KeepCommitted
	// CopyCut (5): what is cut is copied to lost/ first.
	CopyCut
	// ForgetfulVote (6): a replica that may have lost what it acknowledged has a vote
	// only if every replica of the set answers.
	ForgetfulVote
	// ShortIsForgetful (6): so is one whose log ends below the mark it stored.
	ShortIsForgetful
	// DoubtUntilLevel (6): until it holds, durably, all that a leader had written when it
	// spoke to this very opening.
	DoubtUntilLevel
	// OwnAssignment (7): the set changes by a transaction on the leader's own assignment.
	OwnAssignment
	// OneAtATime (7): the next change begins after the outcome of the last was read.
	OneAtATime
	// JointMajority (7): meanwhile commit needs a majority of both sets.
	JointMajority
	// LevelFirst (7): a member is listed only once a majority of the new set holds all
	// that is committed.
	LevelFirst
	// ReadersStop (8): readers stop at the committed mark.
	ReadersStop
	// BoundUnshipped (8): acknowledgements wait while a record is not yet committed that
	// is older than a second.
	BoundUnshipped
	// BoundUnshippedBytes (8): and while more than 4 MiB are not.
	BoundUnshippedBytes
	// ReadRound (9): a read waits for a round to a majority that began after it.
	ReadRound
	// ConfirmRefusal (9): a condition that does not hold is answered after a read round,
	// as what it tells is a read.
	ConfirmRefusal
	// LeaseHeld (9): a follower that granted a lease answers no fence before it ends.
	LeaseHeld
	// LeaseMargin (9): a lease counts from sending, and for 7/8 of its time.
	LeaseMargin
	// LeaseAfterOpening (9): a replica that was opened answers no fence for one lease.
	LeaseAfterOpening
	// UnknownOutcome (11): a record that had a place and is not known to be committed
	// is answered "outcome unknown".
	UnknownOutcome
	// TrimBelowMark (14): heads never pass the committed mark.
	TrimBelowMark
	// CountListed (words): a replica whose disk or incarnation is not the listed one
	// counts in no quorum and no fence.
	CountListed

	ruleCount
)

var ruleNames = [ruleCount]string{
	"name-place", "name-generation", "name-checksum", "answer-durable", "answer-verified", "compare-overlap",
	"persist-generation", "refuse-older", "new-generation", "resign-on-failure",
	"generation-from-log", "unknown-is-learner",
	"set-in-transaction", "fence-majority", "adopt-furthest", "furthest-by-generation", "cut-divergent",
	"serve-after-start", "commit-own-generation", "fence-all-logs", "clamp-positions",
	"cut-where-differs", "keep-committed", "copy-cut",
	"forgetful-vote", "short-is-forgetful", "doubt-until-level",
	"own-assignment", "one-at-a-time", "joint-majority", "level-first",
	"readers-stop", "bound-unshipped", "bound-unshipped-bytes",
	"read-round", "confirm-refusal", "lease-held", "lease-margin", "lease-after-opening",
	"unknown-outcome", "trim-below-mark", "count-listed",
}

// String is the clause's name in reports and flags.
func (r Rule) String() string {
	if r < ruleCount {
		return ruleNames[r]
	}
	return "rule-" + strconv.Itoa(int(r))
}

// AllRules lists every clause.
func AllRules() []Rule {
	rules := make([]Rule, ruleCount)
	for i := range rules {
		rules[i] = Rule(i)
	}
	return rules
}

// ParseRule finds a clause by name.
func ParseRule(name string) (Rule, bool) {
	for i, n := range ruleNames {
		if n == name {
			return Rule(i), true
		}
	}
	return 0, false
}

// Rules is the set of clauses switched off. The zero value is the protocol as it is.
type Rules uint64

// Without switches a clause off.
func (r Rules) Without(off Rule) Rules { return r | 1<<off }

// Hold says whether a clause holds.
func (r Rules) Hold(c Rule) bool { return r&(1<<c) == 0 }
