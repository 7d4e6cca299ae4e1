// Package dirlock keeps directories of data to one process: a file LOCK in the directory
// is locked for as long as they are used, and holds the id of the process that writes there.
// The lock is the file's, so it holds whichever path leads to it. A broker takes that of its
// data directory and that of its storage directory, a restore both of its target, and the
// offline tools every one from a shard's directory upwards.
//
// Other programs have files of that name too. What is neither empty nor a note of ours is
// never written; who only reads writes none; and a note is made once it is known that the
// directory is ours.
//
// It starts no goroutine. Errors: [*HeldError], which matches vfs.ErrLocked, or what the
// file system said.
package dirlock
