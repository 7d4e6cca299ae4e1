package disk

import (
	"fmt"
	"path"
)

// Op is a kind of file-system operation.
type Op uint8

// The kinds. OpAny and OpFlush stand for several and appear in rules only.
const (
	OpAny    Op = iota
	OpFlush     // OpSync and OpDatasync
	OpOpen      // an existing file
	OpCreate    // a file that was missing
	OpRemove    // one file or empty directory
	OpRename
	OpMkdir // one directory that was missing
	OpReadDir
	OpStat
	OpSyncDir
	OpLock
	OpUsage
	OpRead
	OpWrite
	OpTruncate
	OpSync
	OpDatasync
	OpAllocate
	OpWriteback
	OpSize
	OpClose
	opEnd // traces only: the power cut or kill between two lives of a Strict
	opCount
)

var opNames = [opCount]string{
	"any", "flush", "open", "create", "remove", "rename", "mkdir", "readdir", "stat", "syncdir", "lock", "usage",
	"read", "write", "truncate", "sync", "datasync", "allocate", "writeback", "size", "close", "--",
}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// covers reports whether a rule for o applies to an operation of kind k.
func (o Op) covers(k Op) bool {
	return o == OpAny || o == k || o == OpFlush && (k == OpSync || k == OpDatasync)
}

// matchPath reports whether name fits a pattern of path.Match. A pattern without
// a slash is held against the last element, an empty one fits everything. A bad
// pattern fits nothing; Faulty.Add refuses it first.
func matchPath(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	if path.Base(pattern) == pattern {
		name = path.Base(name)
	}
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// Event is one operation in a Strict's trace.
type Event struct {
	N    int    // number of the operation in its life of the disk, from 1; 0 between lives
	Op   Op     //
	Path string // as given by the caller; "old -> new" for a rename
	Off  int64  // position, or new length of a truncate
	Len  int64  // bytes asked for
	Err  string // "" for success
}

func (e Event) String() string {
	s := fmt.Sprintf("%5d %-9s %s", e.N, e.Op, e.Path)
	switch e.Op {
	case OpWrite, OpAllocate:
		s += fmt.Sprintf(" [%d, +%d)", e.Off, e.Len)
	case OpTruncate:
		s += fmt.Sprintf(" to %d", e.Off)
	}
	if e.Err != "" {
		s += ": " + e.Err
	}
	return s
}
