package client

import (
	"errors"
	"os"
	"time"
)

// reading says who reads a connection: its reader or, where requests come one at a time,
// the callers, each its own answer. It is under the pipe's lock.
//
// A reader that hands an answer to its caller wakes a thread of the process, in case there is
// work for both. With one request in flight there is none, and the thread is in the way of the
// broker's (docs/decisions/lent-connections.md has figures). So after a run of requests that
// were alone the reader lends the connection. The first that is not alone ends the loan, and
// begins a new run.
//
//		         lend                 claim
//		reader ────────> nobody <───────────────> caller
//		   ^               │         giveBack        │
//		   └───────────────┴─────────────────────────┘
//		                    recall
//
//	  - Who reads has the connection's reading side to itself, with all that is marked as the
//	    reader's. The lock, or told, hands that on.
//	  - Somebody reads, or is about to, whenever an answer is due: a request that its caller has
//	    not claimed the connection for calls it back (due), and a caller who leaves with its
//	    own answer while others wait does so too (giveBack).
//	  - Nobody is bound by a loan for longer than two loanChecks: one that was not claimed in
//	    between ends, so that the end of an idle connection is noticed; and so does one whose
//	    caller still reads, which may have been given up, by its context or otherwise.
//	  - told has room whenever the connection is called back, which happens once for each loan:
//	    only lend leaves byReader, and the reader then waits for told.
type reading struct {
	by readBy
	// claims counts the callers that have read. seen is what it was at the last check.
	claims, seen uint64
	// interrupted: a deadline has made, or will make, the caller stop.
	interrupted bool
	check       *time.Timer // runs while the connection is lent
	told        chan struct{}
}

type readBy uint8

const (
	byReader readBy = iota
	byNobody
	byCaller
)

const (
	// loneRun is how many requests in a row must have been alone before callers read.
	loneRun = 64
	// loanCheck is how often a loan is looked at.
	loanCheck = 5 * time.Millisecond
)

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// lend gives the connection to callers, if nothing is under way on it. It is the reader's,
// who waits for told if it is true.
func (p *pipe) lend() bool {
	buffered := p.reader.Buffered()
	p.mu.Lock()
	defer p.mu.Unlock()
	if buffered || p.err != nil || p.answersDue() {
		return false
	}
	r := &p.reading
	r.by, r.seen = byNobody, r.claims
	if r.check == nil {
		r.check = time.AfterFunc(loanCheck, p.checkLoan)
	} else {
		r.check.Reset(loanCheck)
	}
	return true
}

// claim is for a caller that is about to ask and then to wait. If it is true, the caller
// must call readFor before it waits otherwise. The lock is held.
func (p *pipe) claim() bool {
	if p.reading.by != byNobody {
		return false
	}
	p.reading.by = byCaller
	p.reading.claims++
	return true
}

// claimNow is claim for who does not hold the lock.
func (p *pipe) claimNow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claim()
}

// readFor reads until c, for which the connection was claimed, has its answer, and returns
// early if somebody else will see to that.
func (p *pipe) readFor(c call) {
	defer p.giveBack()
	for p.oldest(c) {
		switch err := p.readFrame(); {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		default:
			p.fail(err)
		}
	}
}

// oldest reports whether c waits for the answer that is due next.
func (p *pipe) oldest(c call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answersDue() && p.pending[p.head].call == c
}

// giveBack ends a claim.
func (p *pipe) giveBack() {
	buffered := p.reader.Buffered()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.reading
	if r.interrupted {
		ignore(p.conn.SetReadDeadline(time.Time{})) // a connection that fails here fails the reader too
	}
	if buffered || r.interrupted || p.err != nil || p.answersDue() {
		r.interrupted = false
		p.recall()
		return
	}
	r.by = byNobody
}

// recall ends a loan. The lock is held.
func (p *pipe) recall() {
	p.reading.by = byReader
	p.lone = 0
	p.reading.told <- struct{}{} // it has room
}

// checkLoan ends a loan that no caller has claimed since the last check.
func (p *pipe) checkLoan() {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.reading
	switch {
	case r.by == byReader:
	case r.seen != r.claims:
		r.seen = r.claims
		r.check.Reset(loanCheck)
	case r.by == byNobody:
		p.recall()
	case r.by == byCaller:
		r.interrupted = true
		ignore(p.conn.SetReadDeadline(longAgo))
	}
}
