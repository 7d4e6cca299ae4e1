package client

import "time"

// Record is one record as read.
type Record struct {
	Shard int
	// Offset is set when HasOffset is: streams in memory have none.
	Offset    uint64
	HasOffset bool
	// Payload belongs to the caller. It shares memory with the records that
	// arrived with it; clone it to keep a small one of many for long.
	Payload []byte
	// Publisher is the principal that published it, where the stream keeps it
	// and [WithPublisher] asked.
	Publisher string
	// Timestamp is when the broker stored it, where [WithTimestamps] asked. It
	// is zero otherwise.
	Timestamp time.Time
	// Lost counts the records directly before this one that the broker did not
	// deliver, because the subscriber was too slow for a stream in memory.
	Lost uint64
}
