package node

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Stop ends the node in order: no new work, subscriptions end after what is queued,
// publishes in flight are answered, logs are flushed and closed, the directory is
// marked clean. Of the time to stop, clients get six tenths; what protects records gets
// what is left of ctx, and four tenths in any case. A second call returns what the first
// did.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.setStatus("draining")
		n.api.Close()
		draining, cancel := context.WithTimeout(ctx, n.o.Config.Shutdown.Timeout*6/10)
		if err := n.server.Drain(draining); err != nil {
			n.log.Warn("clients were cut off at the end of their part of the time to stop", "error", err)
		}
		cancel()
		n.serving()
		n.stopErr = n.closeInTime(ctx)
	})
	return n.stopErr
}

// abandon undoes a start that failed half-way.
func (n *Node) abandon() error {
	n.serving()
	return n.closeInTime(context.Background())
}

// closeInTime is close within its part of the time to stop, whatever of ctx is left.
func (n *Node) closeInTime(ctx context.Context) error {
	until := time.Now().Add(n.o.Config.Shutdown.Timeout * 4 / 10)
	if end, ok := ctx.Deadline(); !ok {
		until = time.Now().Add(n.o.Config.Shutdown.Timeout)
	} else if end.After(until) {
		until = end
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	return n.close(ctx)
}

// httpGrace is how long requests of the HTTP API that are under way may take to end.
const httpGrace = 500 * time.Millisecond

// close ends whatever was started, from the top down. The directory is marked clean
// only if every log was closed.
func (n *Node) close(ctx context.Context) error {
	var errs []error
	note := func(part string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", part, err))
		}
	}
	if n.broker != nil {
		note("broker", n.broker.Close(ctx))
	}
	if n.disk != nil {
		note("storage", n.disk.Close())
	}
	if n.store != nil {
		note("metadata", n.store.Close(ctx))
	}
	graceful := len(errs) == 0 && n.broker != nil
	n.stop()
	if n.http != nil {
		grace, cancel := context.WithTimeout(ctx, httpGrace)
		if err := n.http.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			note("http", err)
		}
		cancel()
		note("http", n.http.Close()) // whoever sends half a request is cut off
	}
	n.running.Wait()
	if n.data != nil {
		note("data directory", n.data.Close(graceful))
	}
	return errors.Join(errs...)
}
