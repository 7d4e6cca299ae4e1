package node

import (
	"context"
	"errors"
	"fmt"
)

// Stop ends the node in order: no new work, subscriptions end after what is queued,
// publishes in flight are answered, logs are flushed and closed, the directory is
// marked clean. ctx bounds the part that depends on clients; what protects records
// has a time of its own, as long as all of a graceful stop may take. A second call returns what the first did.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.setStatus("draining")
		n.api.Close()
		if err := n.server.Drain(ctx); err != nil {
			n.log.Warn("clients were cut off at the end of the time to stop", "error", err)
		}
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

// closeInTime is close within the time to stop, whatever of ctx is left.
func (n *Node) closeInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.o.Config.Shutdown.Timeout)
	defer cancel()
	return n.close(ctx)
}

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
		note("http", n.http.Shutdown(ctx))
		note("http", n.http.Close())
	}
	n.running.Wait()
	if n.data != nil {
		note("data directory", n.data.Close(graceful))
	}
	return errors.Join(errs...)
}
