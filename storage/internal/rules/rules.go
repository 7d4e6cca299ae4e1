package rules

import "sync/atomic"

// Rule is one rule of the log.
type Rule struct {
	name string
	off  atomic.Bool
}

// Holds says whether the rule is kept.
func (r *Rule) Holds() bool { return !r.off.Load() }

// Name is the rule's name.
func (r *Rule) Name() string { return r.name }

// Suspend takes the rule away until the returned function is called.
func (r *Rule) Suspend() (restore func()) {
	r.off.Store(true)
	return func() { r.off.Store(false) }
}

// The rules. Package storage asks SyncDirectory at four places, FlushCut at three,
// LowerMarkBeforeCut at two, and each of the others at one.
var (
	// FlushBeforeAck: under on_commit nothing is acknowledged before it is flushed.
	FlushBeforeAck = &Rule{name: "flush before ack"}
	// FlushBeforeMark: the durable mark never runs ahead of the device.
	FlushBeforeMark = &Rule{name: "flush before mark"}
	// SyncDirectory: a file's name is on the device before its content counts.
	SyncDirectory = &Rule{name: "sync directory"}
	// PoisonOnFlushFailure: after a failed flush nothing is acknowledged.
	PoisonOnFlushFailure = &Rule{name: "poison on flush failure"}
	// LowerMarkBeforeCut: the mark is lowered, and flushed, before a cut below it.
	LowerMarkBeforeCut = &Rule{name: "lower mark before cut"}
	// RewriteAtOpen: what the mark does not vouch for is written again at open.
	RewriteAtOpen = &Rule{name: "rewrite at open"}
	// FlushCutBeforeNotWritten: "not written" is said after the cut was flushed.
	FlushCutBeforeNotWritten = &Rule{name: "flush cut before not written"}
	// FlushMark: the mark is flushed when it says so.
	FlushMark = &Rule{name: "flush mark"}
	// SealBeforeWatermark: nothing in a segment is durable before the one before it is
	// flushed.
	SealBeforeWatermark = &Rule{name: "seal before watermark"}
	// FlushCut: what recovery and truncation cut is flushed before the log serves.
	FlushCut = &Rule{name: "flush cut"}
)

// All are the rules in no special order.
func All() []*Rule {
	return []*Rule{
		FlushBeforeAck, FlushBeforeMark, SyncDirectory, PoisonOnFlushFailure, LowerMarkBeforeCut,
		RewriteAtOpen, FlushCutBeforeNotWritten, FlushMark, SealBeforeWatermark, FlushCut,
	}
}
