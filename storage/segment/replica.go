package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/felixlog/felix/storage/vfs"
)

const (
	replicaMagic   = 0x464C5253 // "FLRS"
	replicaVersion = 1
	replicaSize    = 28
)

// ReplicaState is what a replica must not forget: the highest generation it accepted,
// and how far the log is committed. It is authoritative.
type ReplicaState struct {
	Generation Generation
	Commit     Offset // one past the last committed record
}

// AppendReplica appends the bytes of the file replica.
func AppendReplica(dst []byte, s ReplicaState) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, replicaMagic)
	dst = binary.BigEndian.AppendUint16(dst, replicaVersion)
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Generation))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Commit))
	return binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:at+24]))
}

// DecodeReplica reads the file replica. The error is a *Corruption, and refuses the
// log.
func DecodeReplica(b []byte) (ReplicaState, error) {
	if len(b) != replicaSize {
		return ReplicaState{}, sideDamage(ReplicaName, "%d bytes, not %d", len(b), replicaSize)
	}
	if c := checkSide(ReplicaName, b, replicaMagic, replicaVersion); c != nil {
		return ReplicaState{}, c
	}
	if got, want := crc32.ChecksumIEEE(b[:24]), binary.BigEndian.Uint32(b[24:]); got != want {
		return ReplicaState{}, sideDamage(ReplicaName, "checksum stored %08x, computed %08x", want, got)
	}
	return ReplicaState{
		Generation: Generation(binary.BigEndian.Uint64(b[8:])),
		Commit:     Offset(binary.BigEndian.Uint64(b[16:])),
	}, nil
}

// WriteReplica replaces dir's replica file; when it returns without error the state is
// on the device.
func WriteReplica(fsys vfs.FS, dir string, s ReplicaState) error {
	return WriteFile(fsys, dir, ReplicaName, AppendReplica(nil, s))
}

// ReadReplica reads dir's replica file. A missing one is the zero state; a damaged one,
// empty included, is an error that wraps a *Corruption.
func ReadReplica(fsys vfs.FS, dir string) (ReplicaState, error) {
	b, err := ReadFile(fsys, dir, ReplicaName, replicaSize)
	if errors.Is(err, fs.ErrNotExist) {
		return ReplicaState{}, nil
	}
	if err != nil {
		return ReplicaState{}, fmt.Errorf("segment: read %s: %w", ReplicaName, err)
	}
	return DecodeReplica(b)
}
