// Package node is the composition root: it opens the data directory, makes what a
// first start needs, and starts and stops the parts of a broker in order.
//
// It owns the data directory (datadir.go), the sockets, the order of starting
// (node.go) and the order of stopping (stop.go), and the mapping of settings to the
// options of each part (plan.go). It decides nothing about records.
//
// The HTTP listener is first up and last down, so that a long recovery and a long
// stop can be watched: /live answers from the first moment, /ready says how far the
// start is.
//
// Goroutines: "http" serves the HTTP listener, "clients" runs the server's accept
// loop, "reload" looks at certificates and keys every 30 s. All begin in Start and
// have ended when Stop returns.
//
// Errors: a data directory that cannot be used is a *DirError naming the path and
// what to do. Everything else is wrapped with the part it came from.
//
// Invariants:
//
//  1. One process per data directory: nothing is written before the lock is held.
//  2. node.json takes this machine's boot id only after every log has been
//     recovered, so that a start that was cut short is judged again as it was.
//  3. The directory is marked clean only when everything above the logs has stopped
//     and every log has been closed.
//  4. Private keys and the context file are readable by their owner alone.
package node
