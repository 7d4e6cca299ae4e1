// Package logtool holds the offline commands over shard directories: write, verify,
// dump, seal and bench. Commands gives them to the two programs that carry them.
//
// verify and dump read segments through package segment and change nothing; write, seal
// and bench open the log through package storage as a broker would. The package serves
// no network and knows no streams, caches or queues: a directory is a log.
//
// A directory below a data root that a running broker has locked is refused, unless the
// command only reads and is told so.
//
// Goroutines: bench and write start one per appender and wait for all before they
// return; the progress line has one, stopped with its owner.
//
// Errors: ErrDamaged from verify and dump when the directory holds damage; what they found
// is on the command's output by then. All else says what was being done.
package logtool
