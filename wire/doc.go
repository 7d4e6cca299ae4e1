// Package wire is FLX1, the client protocol of Felix: frames, the JSON
// messages and binary layouts inside them, the error table, and the function
// from a key to a shard. docs/protocol.md is its page for users.
//
// # What it owns
//
//   - Frames: a 12-byte [Header] and a payload. [Reader] splits a byte stream
//     into frames; every Append function adds one whole frame to a slice.
//   - Messages: one struct per JSON message, named in CamelCase of its type.
//     [DecodeMessage] and [AppendMessage] translate; [Decoder] does so without
//     allocating, reusing what it returned before.
//   - Binary layouts: [PublishBatchFrame], [PublishAck], [EventBatch] and the
//     [EventBatchHeader] that a server builds event frames with.
//   - Failures: [Code], [Retry] and [Failure], the one table shared by server,
//     client and HTTP API.
//   - Routing: [Shard], and the rule for names, [ValidName].
//   - Below TLS: [TLSArrivals] and [TLSHold], which take and give TLS records in
//     large pieces, for server and client alike.
//
// It knows no connection, no session and no log, starts no goroutine, and
// imports nothing of this module.
//
// # Optional fields
//
// A field that may be absent is a value with a bool beside it, Offset and
// HasOffset, wherever the zero value differs from absence. Where it does not
// (an empty node id, an attempts count of zero) there is no bool and the zero
// value is absence. There are no pointers, so that a hot message costs no
// allocation. Decoding sets every field of a message, so that a struct can be
// used again.
//
// # Ownership
//
// What [DecodeMessage] returns is its own copy. What a [Decoder] or a Decode
// method returns refers to the payload it was given, as each says; the memory
// of a frame is kept by [Frame.Retain] until [Frame.Release].
//
// # Below TLS
//
// Both stand between crypto/tls and an io.Reader or io.Writer, and know of TLS
// only the header of a record.
//
//  1. No Read of a [TLSArrivals] gives bytes of two TLS records, so that TLS holds
//     back nothing that is not counted as arrived; what is taken together with a
//     record is taken only where it is whole, without waiting.
//  2. Its buffer has 4 KiB, and Most once it was filled. Read is for TLS alone;
//     ReadTogether and ReadNow are for the goroutine that reads the connection.
//  3. A [TLSHold] gives its socket the bytes in the order they were written: what
//     comes while a Flush writes comes behind it, in the same Flush under Hold, in the
//     next under HoldAlways. A failed write ends a Hold, and what it kept is lost.
//  4. Write of a TLSHold is for TLS alone, on any goroutine; Hold and Flush are for
//     the goroutine that writes the connection.
//
// # Errors
//
// Bad bytes give *[MalformedError], and [Reader] gives [ErrBadMagic],
// [ErrBadVersion], [ErrEmptyFrame] or *[FrameTooLargeError] on the header
// alone. A request whose type is not known gives *[UnknownRequestError], which
// a server answers with [Unsupported]. No input makes this package panic, and
// no length in a frame sizes an allocation before it was checked against the
// bytes that are there.
package wire
