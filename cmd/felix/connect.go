package main

import (
	"context"

	"github.com/felixlog/felix/client"
)

// dial connects to the brokers of the identity.
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
	opts = append([]client.ClientOption{
		client.WithTenant(id.Tenant), client.WithNamespace(id.Namespace), client.WithTLS(trust),
		client.WithToken(func(context.Context) (string, error) { return id.brokerToken() }),
	}, opts...)
	c, err := client.Dial(ctx, id.Brokers, opts...)
	if err != nil {
		return nil, nil, err
	}
	return c, id, nil
}
