package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/wire"
)

// bytesFrom is a size that a variable gives, 0 if it is not set.
func (e *environment) bytesFrom(variable string, least, most int64) (int64, error) {
	text := e.getenv(variable)
	if text == "" {
		return 0, nil
	}
	n, err := config.ParseBytes(text)
	if err == nil && (n < least || n > most) {
		err = fmt.Errorf("%q is not %d to %d bytes", text, least, most)
	}
	if err != nil {
		return 0, usagef("%s: %v", variable, err)
	}
	return n, nil
}

// dial connects to the brokers of the identity, within the time of one request.
func (e *environment) dial(ctx context.Context, opts ...client.ClientOption) (*client.Client, *identity, error) {
	id, err := e.identity()
	if err != nil {
		return nil, nil, err
	}
	if len(id.Brokers) == 0 {
		return nil, nil, usagef("no broker: "+noContext, "brokers")
	}
	if _, err := id.brokerToken(); err != nil {
		return nil, nil, err
	}
	trust, err := id.brokerTLS()
	if err != nil {
		return nil, nil, err
	}
	frame, err := e.bytesFrom("FELIX_MAX_FRAME_BYTES", wire.PreAuthMaxFrame, math.MaxUint32)
	if err != nil {
		return nil, nil, err
	}
	if frame > 0 {
		opts = append(opts, client.WithMaxFrame(uint32(frame)))
	}
	if e.opts.timeout <= 0 {
		return nil, nil, usagef("--timeout %v leaves no time for an answer", e.opts.timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, e.opts.timeout)
	defer cancel()
	opts = append([]client.ClientOption{
		client.WithDialTimeout(e.opts.timeout), client.WithAnswerTimeout(e.opts.timeout),
		client.WithTenant(id.Tenant), client.WithNamespace(id.Namespace), client.WithTLS(trust),
		client.WithToken(func(context.Context) (string, error) { return id.brokerToken() }),
	}, opts...)
	c, err := client.Dial(ctx, id.Brokers, opts...)
	if err != nil {
		return nil, nil, notReached(err, "brokers")
	}
	return c, id, nil
}

// notReached adds to an error of who could not be reached what to do; flag is the one that
// says where that is.
func notReached(err error, flag string) error {
	switch {
	case isTLS(err):
		return fmt.Errorf("%w: is it another broker? --%s says where, --ca-file and --server-name whom to trust, --context all of them", err, flag)
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), isNetwork(err):
		if flag == "controlplane-url" {
			flag += ", the broker's http.listen," // which is not where clients go
		}
		return fmt.Errorf("%w: does a broker run there? `felix serve` starts one, --%s or --context names another", err, flag)
	}
	return err
}
