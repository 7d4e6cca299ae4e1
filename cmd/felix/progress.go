package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressAfter is when a command that is not done begins to say how far it is.
const progressAfter = time.Second

// progress says on standard error how far a long command is, once it has run for a
// second: a bar on a terminal, a line every ten seconds elsewhere.
type progress struct {
	out   io.Writer
	what  string
	total int64 // -1: unknown
	begun time.Time

	mu   sync.Mutex
	done int64
	bar  *progressbar.ProgressBar
	said time.Time
}

func (e *environment) progress(what string, total int64) *progress {
	now := time.Now()
	p := &progress{out: e.err, what: what, total: total, begun: now, said: now}
	if f, ok := e.err.(*os.File); ok && !e.opts.json && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(e.err), progressbar.OptionSetDescription(what),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())
	}
	return p
}

// add counts n more.
func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	now := time.Now()
	if now.Sub(p.begun) < progressAfter {
		return
	}
	if p.bar != nil {
		if err := p.bar.Set64(p.done); err != nil {
			p.bar = nil
		}
		return
	}
	if now.Sub(p.said) < 10*time.Second && !p.said.Equal(p.begun) {
		return
	}
	p.said = now
	if p.total > 0 {
		fmt.Fprintf(p.out, "%s: %d of %d\n", p.what, p.done, p.total)
	} else {
		fmt.Fprintf(p.out, "%s: %d\n", p.what, p.done)
	}
}

// end takes the bar away.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil && time.Since(p.begun) >= progressAfter {
		if err := p.bar.Clear(); err != nil {
			return
		}
	}
}
