package segment

import (
	"encoding/binary"
	"iter"
)

// Commit is the body of a KindCommit record: an event and the cache operations that
// become visible with it.
type Commit struct {
	Event []byte
	Ops   []CommitOp
}

// CommitOp puts or deletes one key.
type CommitOp struct {
	Delete bool
	Key    []byte
	Value  []byte // of a put
}

const (
	commitVersion = 1
	commitPut     = 0
	commitDelete  = 1
)

// AppendCommit appends the payload of a KindCommit record.
func AppendCommit(dst []byte, c *Commit) []byte {
	dst = append(dst, commitVersion)
	dst = appendBytes(dst, c.Event)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(c.Ops)))
	for i := range c.Ops {
		op := &c.Ops[i]
		if op.Delete {
			dst = appendBytes(append(dst, commitDelete), op.Key)
			continue
		}
		dst = appendBytes(append(dst, commitPut), op.Key)
		dst = appendBytes(dst, op.Value)
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(b)))
	return append(dst, b...)
}

// CommitBody gives the event of a commit's payload and a walk over its operations.
// Everything is a view of payload, and nothing is allocated. The error is a
// *Corruption.
func CommitBody(payload []byte) (event []byte, ops iter.Seq[CommitOp], err error) {
	if c := checkCommit(payload); c != nil {
		return nil, nil, c
	}
	event, rest, _ := cutBytes(payload[1:])
	return event, func(yield func(CommitOp) bool) {
		rest := rest[4:]
		for len(rest) > 0 {
			var op CommitOp
			op.Delete = rest[0] == commitDelete
			op.Key, rest, _ = cutBytes(rest[1:])
			if !op.Delete {
				op.Value, rest, _ = cutBytes(rest)
			}
			if !yield(op) {
				return
			}
		}
	}, nil
}

func cutBytes(b []byte) (head, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n : 4+n], b[4+n:], true
}

// checkCommit walks a commit's body without keeping anything of it.
func checkCommit(b []byte) *Corruption {
	if len(b) == 0 {
		return corrupt(RecordBody, "empty commit")
	}
	if b[0] != commitVersion {
		return corrupt(RecordBody, "commit version %d is not supported; version %d is", b[0], commitVersion)
	}
	_, rest, ok := cutBytes(b[1:])
	if !ok {
		return corrupt(RecordBody, "commit event exceeds the body")
	}
	if len(rest) < 4 {
		return corrupt(RecordBody, "commit without a count of operations")
	}
	count := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	for i := range count {
		if len(rest) == 0 {
			return corrupt(RecordBody, "commit ends before operation %d of %d", i+1, count)
		}
		op := rest[0]
		if op > commitDelete {
			return corrupt(RecordBody, "commit operation %d has unknown code %d", i+1, op)
		}
		if _, rest, ok = cutBytes(rest[1:]); !ok {
			return corrupt(RecordBody, "key of commit operation %d exceeds the body", i+1)
		}
		if op == commitPut {
			if _, rest, ok = cutBytes(rest); !ok {
				return corrupt(RecordBody, "value of commit operation %d exceeds the body", i+1)
			}
		}
	}
	if len(rest) != 0 {
		return corrupt(RecordBody, "%d bytes after the last commit operation", len(rest))
	}
	return nil
}
