// Package metatest is the conformance suite of meta.Store: what the catalog and the
// replicas rely on, as tests that every store passes alike (the one in memory, the local
// one in a log, etcd).
//
// A store is opened by the caller's function, once for each test, empty. Tests use no
// clock but the store's own and wait for nothing but what they caused.
//
// Goroutines: of the tests alone, ended by their end.
package metatest
