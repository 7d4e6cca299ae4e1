package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTimeout bounds how long a child may take until it serves.
	startTimeout = 2 * time.Minute
	// keptLines are the lines of its log that an error shows.
	keptLines = 40
	// longestLine bounds a line in bytes; a longer one ends the reading of the log.
	longestLine = 1 << 20
)

// Process is a child that serves, or did.
type Process struct {
	// Clients and HTTP are where it serves: an address, and a URL where it has one.
	Clients, HTTP string

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // set before exited is closed

	mu    sync.Mutex
	lines []string
}

// Start starts cmd and waits until it serves. Each line of its log is given to heed, if
// there is one, on a goroutine of the child's. A child that does not come to serve is
// killed, and its last lines are in the error.
func Start(ctx context.Context, cmd *exec.Cmd, heed func(line []byte)) (*Process, error) {
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	serving := make(chan struct{})
	go p.follow(out, heed, serving)
	t := time.NewTimer(startTimeout)
	defer t.Stop()
	select {
	case <-serving:
		return p, nil
	case <-p.exited:
		return nil, fmt.Errorf("broker did not start: %w%s", p.err, p.Tail())
	case <-t.C:
		err = fmt.Errorf("broker does not serve after %s%s", startTimeout, p.Tail())
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, p.Kill())
}

// follow reads the child's log until it ends, and then waits for the child.
func (p *Process) follow(out io.Reader, heed func([]byte), serving chan<- struct{}) {
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, longestLine)
	for sc.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, sc.Text())
		p.lines = p.lines[max(0, len(p.lines)-keptLines):]
		p.mu.Unlock()
		if heed != nil {
			heed(sc.Bytes())
		}
		var line struct{ Msg, Clients, HTTP string }
		if serving != nil && json.Unmarshal(sc.Bytes(), &line) == nil && line.Msg == "serving" {
			p.Clients, p.HTTP = line.Clients, line.HTTP
			close(serving)
			serving = nil
		}
	}
	p.err = errors.Join(sc.Err(), p.cmd.Wait())
	if p.err == nil {
		p.err = errors.New("it ended by itself")
	}
	close(p.exited)
}

// Pid is the child's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the child has ended; Err says how from then on.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err is how the child ended.
func (p *Process) Err() error {
	<-p.exited
	return p.err
}

// Tail are the last lines of the child's log, each on a line of its own.
func (p *Process) Tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, line := range p.lines {
		b.WriteString("\n  " + line)
	}
	return b.String()
}

// Kill ends the child at once, as kill -9 does, and waits until it has ended.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.exited
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Signal sends the child a signal, and does not wait.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Stop asks the child to end and waits until it has: an exit status other than 0 is an
// error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(err, p.Kill())
	}
	<-p.exited
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("broker ended with exit status %d%s", code, p.Tail())
	}
	return nil
}
