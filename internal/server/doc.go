// Package server speaks FLX1 with clients: over QUIC, where every stream is a session
// of its own, and over TLS on TCP, where the connection is one session. The session
// code is the same.
//
// It owns sockets, connections and sessions: authentication of each stream, negotiation,
// flow control, the order of answers, event streams, draining, and the requests of
// streams, caches, counters and groups as [Handlers]; others can be added. It does not own
// what these requests are about (package broker and below), or tokens and certificates
// (package auth).
//
// # A session
//
// One goroutine reads it. It takes every frame that has arrived, hands publishes to
// their shards without waiting for any, then drives the shards it touched once, then
// writes what there is to answer. Completions that come later, on whatever goroutine
// drives a shard, put their answer into the session's buffer and start a writer only if
// none is active: frames gather while one writes. There is no goroutine per publish.
//
// What a session takes on is bounded: publishes by a window and by the connection's
// bytes in flight, deferred requests by a window, answers by the bytes that wait for the
// client to read them or for their turn. At each bound the session is not read until there is room; so a
// client that does not read its answers stops itself, and nobody else. Each such pause
// and each refusal is counted by its reason ([Events]).
//
// A request that reads waits for those before it on its stream that wrote, which are
// driven first: it sees them. A request that waits for something to happen, such as a long
// poll, keeps its stream; meanwhile the link is read ahead, so that its end ends the wait.
//
// # Subscriptions
//
// Each has a goroutine that takes frames from the shard and writes them to a stream of
// its own (TCP: to the connection, which carries nothing else from then on). It ends
// when the client stops reading (STOP_SENDING; TCP: closes), and a write that fails ends
// it too. A client's FIN on the stream that asked is no end.
//
// # Goroutines
//
// [Server.Serve] starts an accepting goroutine per socket, and waits for everything it
// started. A TCP connection has two goroutines, one that waits for its end and one that is
// its session; a QUIC connection one that waits for its end, two that accept, and one per
// stream. Subscriptions, active writers, links that are read ahead and answers that are
// read from disk have one each. All end with their connection.
//
// # Errors
//
// A request is answered with the failure of broker.Failure, its code and detail only to
// a client that offered to read them. What breaks the framing ends the stream, after an
// error that says why.
//
// # Invariants
//
//  1. Before a stream has authenticated, nothing it sends makes the server hold more
//     than a frame of 64 KiB, and nothing of it reaches a broker.
//  2. Every acknowledged publish is answered exactly once; to a pipelining client in the
//     order they came, whatever order the shards finish in.
//  3. A publish that asked for no answer gets none, not even a refusal.
//  4. No client sees a flag, code, field or message it did not offer to read.
//  5. The memory of a publish is touched by nobody until its shard is done with it.
package server
