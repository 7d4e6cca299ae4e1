// Package client is the Go client of Felix.
//
//	c, err := client.Dial(ctx, []string{"127.0.0.1:5000"},
//		client.WithTenant("default"), client.WithToken(client.StaticToken(token)), client.WithRootCAs(pool))
//	ack, err := c.Publish(ctx, "orders", []byte("hello"))
//	sub, err := c.Subscribe(ctx, "orders", client.FromEarliest())
//	record, err := sub.Next(ctx)
//
// It speaks the wire protocol of docs/protocol.md over TLS on TCP.
//
// # What an answer means
//
// A nil error means done. An error says which of the other two it is: one that
// matches [ErrOutcomeUnknown] may have been applied, by its last try or an
// earlier one, any other was not. It matches the reason of the last try too. A
// context ends the waiting, never the write: when it ends while a publish is
// under way, the error matches both ErrOutcomeUnknown and the context's own.
//
// Requests that may be applied twice without harm are sent again when their
// outcome is unknown, as [RetryPolicy] says; the others end with it.
//
// Publishing is idempotent by default: every batch has a producer id and a
// sequence and is sent again, under the same sequence, until the broker has
// answered, across lost connections and restarts. It is in the log once.
// [WithDelivery] chooses less.
//
// # What it owns
//
//   - [Client]: the connections. One carries requests, up to a few carry
//     publishes and as many requests about keys and groups; each poll that
//     waits, and each shard of a subscription or watch, has one of its own. They
//     are opened on first use and again after they are lost.
//   - [Producer]: records gathered into batches, at most 64 of them in flight
//     for a shard, in bounded memory. [Client.Publish] uses one per stream.
//   - [Subscription]: records of one shard or of all, resumed after a lost
//     connection without a gap or a duplicate.
//   - [Watch]: the changes of a cache, resumed likewise.
//   - [Group.Consume]: a poll for each shard, and the handlers of the records
//     that came.
//
// # Goroutines
//
// A connection has a reader and a writer, which end with it. Where requests come one
// at a time, those who wait for the answers read them in the reader's place, and hear
// of the end of their context up to 10 ms late. A producer has one for a shard only
// while that shard connects or recovers. A subscription and a watch have one a shard, a
// consumer one a shard and one a record in hand, two while its claim is extended; its
// handlers end before Consume returns. Close of the others ends them and answers
// everyone who waits. Nothing runs before Dial.
//
// # Memory
//
// A producer holds at most [WithMaxBuffered] bytes of records. A subscription
// holds a bounded count of frames and otherwise stops reading, so that the
// broker waits. Payloads of records belong to the caller, but for those of
// [Subscription.NextBatch], which are read over by the next call.
package client
