// Package partition is one shard of a stream: its log, what is remembered of its
// producers, and its subscribers. A durable shard keeps its records in a storage.Log;
// an in-memory shard keeps the newest of them, behind the same methods.
//
// It owns the way of a publish (admission, the conditions checked as an offset is
// given, the answer), the readable bound, the ring of recent groups and every
// subscription of the shard. It does not know sessions, tenants, the catalog or
// directories: package broker does.
//
// # The way of a publish
//
// [Partition.Publish] checks, takes room in the [Budget], and queues; it does no I/O.
// [Partition.Drive] has the log write what is queued, on the calling goroutine where
// it can. As each batch gets its offset the log asks for admission, under its pen:
// there the producer table decides over idempotent batches. When a group is stable, and
// before its publishers are answered, its records go into the ring, the readable bound
// moves past it and those waiting are woken. Publish.Done runs last, in offset order,
// refusals included. With a [Gate] (more than one replica) the bound and the answers
// wait for [Partition.Commit].
//
// # Subscriptions
//
// A durable subscription is a position. [Subscription.Next] reads the ring if the
// position is there, else one page of the disk, never past the readable bound; it holds
// nothing between calls but its position. So it cannot lose a record, whatever its
// speed, and it is registered before it reads anything, so none falls between the two
// sources. A subscription of an in-memory shard is a bounded queue with the stream's
// overflow policy.
//
// # Goroutines
//
// None runs for an idle shard. A goroutine that writes the producer snapshot lives as
// long as that write; an in-memory shard has a timer while publishes are held back.
// Close and Delete wait for both. Subscriptions run on their callers' goroutines.
//
// # Errors
//
// [ErrClosed], [ErrDeleted], [ErrOpenAnew], [*OverloadedError], [ErrMemoryStream], [ErrEmptyBatch],
// [*TooOldError], [*InFutureError], [ErrSlow], [ErrUnsubscribed]; those of package
// stream for idempotent publishes; those of package storage otherwise.
//
// # Invariants
//
//   - The order on disk is the order of delivery and of answers.
//   - Nothing is delivered, and no answer leaves, before what precedes it is stable
//     (with a gate: committed).
//   - A durable subscription sees every record from its start once, in order, or ends
//     with an error that says why.
//   - What a subscription holds does not grow with how far it is behind.
//   - No lock is held while a subscriber is woken, a callback runs or the disk is read.
package partition
