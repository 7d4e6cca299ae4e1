// Package soak runs a broker process under everything at once for as long as one likes,
// and judges what it saw: publishes at a fixed rate, replays from the start, a cache with
// values that expire, a queue that is polled and acknowledged, clients that come and go,
// segments that roll, retention and compaction.
//
// [Run] looks at the broker once a second: memory, goroutines, descriptors, and the
// latency of the publishes that were due in that second, counted from when they were
// due and not from when they got their turn. Beside it a probe measures the machine
// itself ([probe]): how late a sleep ends, and how long writing and flushing a page takes.
//
// [Report.Judge] says whether memory, goroutines or descriptors went on rising over the last half,
// and which seconds' p99.9 stand out; [Report.Err] fails the run for either, unless the
// machine itself stood still then. [Report.Write] leaves the samples as JSON and as
// a picture.
//
// Its goroutines are the load's and the probe's; Run waits for all of them. It is for
// tests: no package of the broker imports it, and the plotting library with it.
package soak
