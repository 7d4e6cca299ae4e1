// Package broker is all shards of a node. It follows the catalog: it opens the shards
// of streams that exist, closes and deletes those of streams that do not, and finds a
// publish or a subscription its shard without a lock.
//
// It owns the directories of shards below the root (names, incarnations, setting aside,
// removal), the parallel recovery and its progress, the bounds on publishes in flight
// per tenant and node, and the one table that turns an error of the layers below into
// a failure of the wire protocol ([Failure]). Sessions, authentication and the HTTP API
// are not its; package partition has the shard itself.
//
// Goroutines: one follows the catalog; a bounded number of workers open, close and
// delete shards while there is such work; one removes deleted directories while there
// are any. All are started by [Open] or later, and [Broker.Close] waits for them. None
// runs for an idle shard.
//
// Errors: what a caller meets is a *wire.Failure, or becomes one through [Failure].
//
// Invariants:
//   - A directory of another incarnation of a stream is never served and never deleted
//     by this one: it is set aside and reported.
//   - A damaged shard is out of service by name; every other shard serves.
//   - Every publish gets an answer, also one that meets a deletion or a shutdown.
//   - The directories of a deleted stream are renamed aside before a stream of the same
//     name opens.
package broker
