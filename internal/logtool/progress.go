package logtool

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

const progressStep = 1 << 20 // bytes between two calls of add

// progress prints a line on the error output once something has taken a second: one
// that is rewritten on a terminal, one every ten seconds elsewhere.
type progress struct {
	w        io.Writer
	verb     string
	terminal bool
	done     atomic.Int64
	shown    atomic.Bool
	quit     chan struct{}
	gone     chan struct{}
}

func startProgress(w io.Writer, verb string) *progress {
	p := &progress{w: w, verb: verb, quit: make(chan struct{}), gone: make(chan struct{})}
	if f, ok := w.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
	}
	go p.run()
	return p
}

func (p *progress) run() {
	defer close(p.gone)
	start := time.Now()
	wait := time.Second
	for {
		t := time.NewTimer(wait)
		select {
		case <-p.quit:
			t.Stop()
			return
		case <-t.C:
		}
		n := p.done.Load()
		secs := time.Since(start).Seconds()
		text := fmt.Sprintf("%s %s, %s/s", p.verb, bytesText(n), bytesText(int64(float64(n)/secs)))
		if p.terminal {
			fmt.Fprintf(p.w, "\r\x1b[K%s", text)
			p.shown.Store(true)
		} else {
			fmt.Fprintln(p.w, text)
			wait = 10 * time.Second
		}
	}
}

// add counts bytes that are done.
func (p *progress) add(bytes int64) { p.done.Add(bytes) }

// clear takes the line off a terminal before something else is printed.
func (p *progress) clear() {
	if p.shown.Swap(false) {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *progress) stop() {
	close(p.quit)
	<-p.gone
	p.clear()
}
