package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// silence bounds the waits of an answer that may take as long as it likes while it comes:
// none of them is longer than after.
type silence struct {
	after time.Duration
	timer *time.Timer
	ctx   context.Context // of the answer
	stop  context.CancelCauseFunc
}

// newSilence waits for the beginning of the answer. The context is that of its request.
func newSilence(ctx context.Context, after time.Duration) (context.Context, *silence) {
	ctx, stop := context.WithCancelCause(ctx)
	s := &silence{after: after, ctx: ctx, stop: stop}
	s.timer = time.AfterFunc(after, func() {
		stop(fmt.Errorf("nothing came for %v, which --timeout allows: %w", after, context.DeadlineExceeded))
	})
	return ctx, s
}

// begun says that the answer begins: its body is waited for where somebody reads it.
func (s *silence) begun(body io.ReadCloser) io.ReadCloser {
	s.timer.Stop()
	return &heard{body, s}
}

// end gives up waiting.
func (s *silence) end() {
	s.timer.Stop()
	s.stop(nil)
}

// heard is a body that somebody waits for while they read it, and not while they write
// what they have read.
type heard struct {
	io.ReadCloser
	s *silence
}

func (h *heard) Read(p []byte) (int, error) {
	h.s.timer.Reset(h.s.after)
	n, err := h.ReadCloser.Read(p)
	h.s.timer.Stop()
	if err != nil && err != io.EOF && h.s.ctx.Err() != nil {
		err = context.Cause(h.s.ctx)
	}
	return n, err
}
