// Package meta owns the metadata of a deployment: what exists (tenants, namespaces,
// streams, caches), who is there (nodes), and who serves what (assignments and their
// generations). It has three parts:
//
//   - the model: plain values with their validation and their JSON form;
//   - Store: a small versioned key-value interface (compare-and-set over several
//     keys, leases, ordered watches) that a local log-backed store and etcd
//     implement alike, and Memory, a deterministic one for tests;
//   - Catalog: the typed layer over a Store that brokers and the HTTP API use.
//
// It does not place shards, open logs or decide who leads: it only keeps what was
// decided, each change a transaction on the versions that were read.
//
// Goroutines: none. A Watcher is pulled by its reader.
//
// Errors: ErrNotFound, ErrConflict, ErrUnavailable, ErrUnknownOutcome, ErrCompacted
// and ErrLeaseExpired from a Store; *ExistsError, *InvalidError, *NotFoundError, *FixedError
// from a Catalog, in an *ItemError where several were asked for. Each names the object.
//
// Invariants:
//
//   - a version is written once: two successful transactions of one store history
//     never share one, and a later one has the higher;
//   - a watcher sees every change after its start exactly once, in version order, or
//     is told ErrCompacted; it is never handed a hole;
//   - an incarnation is never zero and never reused: deleting a stream and creating
//     it again gives another one;
//   - a child exists only while its parent does: creation compares the parent's
//     version, deletion marks the parent first.
package meta
