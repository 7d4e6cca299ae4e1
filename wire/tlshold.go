package wire

import (
	"io"
	"sync"
)

// TLSHold sits between TLS and what it writes to. TLS writes each of its records of 16 KiB
// by itself; TLSHold keeps them back until Flush, so that one large write of ours is one
// system call. Socket is set before its first use.
//
// TLS may write from the reader too (an answer to a key update), at any time: that waits
// likewise, so that the bytes stay in order. Hold, HoldAlways and Flush are for the
// connection's writer, one goroutine at a time. No lock is held while Socket writes.
//
// What is held has no bound of its own: it is what was written between two calls of Flush.
type TLSHold struct {
	Socket io.Writer

	mu sync.Mutex
	// held: what is written waits for Flush. With always it does so for good.
	held, always bool
	// buf is what waits. With always, spare is the buffer that buf had before.
	buf, spare []byte
}

// Hold makes what is written wait for the next Flush, which ends the hold. What is kept back
// is in room until then, as long as it fits.
func (h *TLSHold) Hold(room []byte) {
	h.mu.Lock()
	h.held, h.buf = true, room[:0]
	h.mu.Unlock()
}

// HoldAlways makes all that is written from here on wait for a Flush. What comes while one
// writes waits for the next. The buffers, which are kept, are as large as the most that was
// written between two.
func (h *TLSHold) HoldAlways() {
	h.mu.Lock()
	h.held, h.always = true, true
	h.mu.Unlock()
}

// Write is for TLS: it keeps p back, or passes it on.
func (h *TLSHold) Write(p []byte) (int, error) {
	h.mu.Lock()
	held := h.held
	if held {
		h.buf = append(h.buf, p...)
	}
	h.mu.Unlock()
	if held {
		return len(p), nil
	}
	return h.Socket.Write(p)
}

// Flush writes what was kept back. It ends a Hold, once nothing came beside what it wrote,
// or a write failed: what is written after that goes to Socket by itself.
func (h *TLSHold) Flush() error {
	for {
		h.mu.Lock()
		out := h.buf
		h.buf, h.spare = h.spare[:0], nil
		h.mu.Unlock()
		var err error
		if len(out) > 0 {
			_, err = h.Socket.Write(out)
		}
		h.mu.Lock()
		more := false
		if h.always {
			h.spare = out[:0]
		} else if more = err == nil && len(h.buf) > 0; !more {
			h.held, h.buf = false, nil
		}
		h.mu.Unlock()
		if !more {
			return err
		}
	}
}
