// Package vfs is the file-system seam of the log: the only package that calls
// the operating system's file functions.
//
// It owns the interfaces FS and File, the real file system (OS), and the small
// differences between operating systems: how a flush reaches the device, how
// blocks are reserved, how a process lock is taken. It knows nothing of segments,
// records or policies, and it adds no durability of its own: a Create or Rename
// is durable after SyncDir, a write after Sync or Datasync, and not before.
//
// It starts no goroutines. Every error wraps *fs.PathError, so that callers ask
// with errors.Is for fs.ErrNotExist, fs.ErrExist, syscall.ENOSPC, syscall.EIO;
// ErrUnsupported and ErrLocked are the two errors of its own. A flush that failed
// is reported once and never retried here: after a failed flush the kernel may
// have dropped the dirty pages, and a second flush that succeeds says nothing
// about them.
//
// Invariants:
//   - A call interrupted by a signal is retried; EINTR never reaches a caller.
//   - WriteAt returns n < len(p) only together with an error.
//   - A system call never runs on a descriptor that a concurrent Close has given
//     back to the system.
//   - Files are made with mode 0600 and directories with 0700.
//
// Linux is the platform the log is measured and crash-tested on. On macOS Sync
// and Datasync use F_FULLFSYNC, since fsync there stops at the drive's cache. On
// others the package compiles, and what the system lacks is ErrUnsupported.
package vfs
