package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/client/felixtest"
)

// connect is what an application does, here with the broker for tests.
func connect(ctx context.Context) (c *client.Client, done func()) {
	b, err := felixtest.Start()
	if err != nil {
		log.Fatal(err)
	}
	b.CreateStream("orders", 1)
	c, err = client.Dial(ctx, []string{b.Addr()},
		client.WithToken(client.StaticToken(b.Token())), client.WithRootCAs(b.RootCAs()))
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		if err := c.Close(); err != nil {
			log.Fatal(err)
		}
		b.Close()
	}
}

func ExampleClient_Publish() {
	ctx := context.Background()
	c, done := connect(ctx)
	defer done()

	ack, err := c.Publish(ctx, "orders", []byte("hello"))
	switch {
	case errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Println("may be in the log")
	case err != nil:
		fmt.Println("is not in the log:", err)
	default:
		fmt.Println("is in the log at", ack.Offset)
	}
	// Output: is in the log at 0
}

func ExampleProducer() {
	ctx := context.Background()
	c, done := connect(ctx)
	defer done()

	p, err := c.Producer("orders")
	if err != nil {
		log.Fatal(err)
	}
	var futures []client.Future
	for i := range 1000 {
		f, err := p.Send(ctx, fmt.Appendf(nil, "order %d", i))
		if err != nil {
			log.Fatal(err)
		}
		futures = append(futures, f)
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
	ack, err := futures[999].Wait(ctx)
	fmt.Println(ack.Offset, err)
	// Output: 999 <nil>
}

func ExampleClient_Subscribe() {
	ctx := context.Background()
	c, done := connect(ctx)
	defer done()
	for i := range 3 {
		if _, err := c.Publish(ctx, "orders", fmt.Appendf(nil, "order %d", i)); err != nil {
			log.Fatal(err)
		}
	}

	sub, err := c.Subscribe(ctx, "orders", client.FromEarliest())
	if err != nil {
		log.Fatal(err)
	}
	for record, err := range sub.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s\n", record.Offset, record.Payload)
		if record.Offset == 2 {
			break
		}
	}
	if err := sub.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 order 0
	// 1 order 1
	// 2 order 2
}

func ExampleClient_PublishIf() {
	ctx := context.Background()
	c, done := connect(ctx)
	defer done()

	if _, err := c.PublishIf(ctx, "orders", 0, [][]byte{[]byte("first")}); err != nil {
		log.Fatal(err)
	}
	_, err := c.PublishIf(ctx, "orders", 0, [][]byte{[]byte("first again")})
	var mismatch *client.OffsetMismatchError
	fmt.Println(errors.As(err, &mismatch), mismatch.Tail)
	// Output: true 1
}
