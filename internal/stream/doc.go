// Package stream holds the pure cores of a stream shard: values in, values out. It
// owns the memory of idempotent producers ([Producers]), the encoding of event frames
// ([Shape], [Chunk]), the ring of recent groups that durable subscriptions read
// ([Ring]), and the replay ring and subscriber queues of in-memory streams ([Replay],
// [Queue]).
//
// It owns no log, no socket and no position of a subscriber: package partition puts
// these cores together with a log and goroutines.
//
// Goroutines: none is started here. [Ring] and [Chunk] are safe for concurrent use,
// because many subscriptions read the same entries; the other types belong to whoever
// holds the lock of their shard. There is no clock.
//
// Errors: the refusals of an idempotent publish are [ErrUnknownProducer],
// [ErrSequenceExpired], [ErrSequenceReused], [*SequenceGapError] and, when the batch is
// already there, [ErrDuplicate].
//
// Invariants:
//   - A batch that [Producers] admitted is remembered exactly when it became stable;
//     one that was taken back leaves no trace.
//   - The chunks of a [Ring] are contiguous: each covers the positions from where the
//     one before it ended.
//   - A frame is encoded at most once per shape, however many subscriptions read it.
//   - A [Queue] never holds more batches than its capacity, nor more bytes than its
//     bound but for one batch.
package stream
