package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// leastInterval is the shortest time between two looks: each look makes the broker count.
const leastInterval = 200 * time.Millisecond

func (e *environment) topCommand() *cobra.Command {
	interval, once := 2*time.Second, false
	c := &cobra.Command{
		Use: "top", Short: "Watch what a broker is doing", Args: cobra.NoArgs,
		Long: "Watch what a broker is doing: streams, groups, caches, connections, disk.\n" +
			"Rates are taken between two looks, an --interval apart; q ends it. Into a file or a pipe it prints\n" +
			"one table and ends, as with --once; with --json it prints one object a look until it is interrupted.",
		RunE: ran(func(c *cobra.Command, _ []string) error {
			if interval < leastInterval {
				return usagef("--interval %v is below the least allowed, %v", interval, leastInterval)
			}
			w, err := e.brokerWatch()
			if err != nil {
				return err
			}
			defer w.client.CloseIdleConnections()
			t := &top{brokerWatch: w, interval: interval, timeout: e.opts.timeout}
			switch in, out := e.terminal(); {
			case e.opts.json:
				return e.topJSON(c.Context(), t, once)
			case once, in == nil, out == nil:
				return e.topOnce(c.Context(), t)
			default:
				return t.full(c.Context(), in, out)
			}
		}),
	}
	c.Flags().DurationVar(&interval, "interval", interval, fmt.Sprintf("time between two looks, at least %v", leastInterval))
	c.Flags().BoolVar(&once, "once", false, "print one table after two looks and end")
	return c
}

// terminal is the terminal that in and out are, nil where one of them is none.
func (e *environment) terminal() (in, out *os.File) {
	if f, ok := e.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		in = f
	}
	if f, ok := e.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		out = f
	}
	return in, out
}

// top looks at a broker again and again.
type top struct {
	*brokerWatch
	interval, timeout time.Duration
	before            *brokerSample
}

// look takes a sample and compares it with the one before. After one that failed the
// next has nothing to be compared with but the last that did not: rates are then over
// the longer time, or none if the broker was restarted in between.
func (t *top) look(ctx context.Context) (*topView, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	now, err := t.sample(ctx)
	if err != nil {
		return nil, err
	}
	v := viewOf(t.base.Host, t.before, now)
	t.before = now
	return v, nil
}

// wait waits for the time of the next look; false when ctx has ended.
func (t *top) wait(ctx context.Context) bool {
	timer := time.NewTimer(t.interval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// twoLooks is a view with rates.
func (t *top) twoLooks(ctx context.Context) (*topView, error) {
	if _, err := t.look(ctx); err != nil {
		return nil, err
	}
	if !t.wait(ctx) {
		return nil, ctx.Err()
	}
	return t.look(ctx)
}

func (e *environment) topOnce(ctx context.Context, t *top) error {
	v, err := t.twoLooks(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(e.out, v.render(topSize{}, ""))
	return err
}

// topJSON prints views until it is interrupted, which is how it is meant to end. A
// broker that is away for a while is said on standard error.
func (e *environment) topJSON(ctx context.Context, t *top, once bool) error {
	v, err := t.twoLooks(ctx)
	for {
		switch {
		case ctx.Err() != nil && !once:
			return nil
		case err != nil && (once || t.before == nil):
			return err
		case err != nil:
			e.report(err, exitCode(&ranError{err}))
		default:
			printJSON(e.out, v)
			if once {
				return nil
			}
		}
		if !t.wait(ctx) {
			return nil
		}
		v, err = t.look(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
	}
}
