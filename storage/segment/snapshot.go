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
	snapshotMagic      = 0x464C534E // "FLSN"
	snapshotVersion    = 1
	snapshotHeaderSize = 32

	// MaxSnapshotSize bounds a reading's snapshot file, header included, in bytes.
	MaxSnapshotSize = 1 << 30
)

// SnapshotHead frames the snapshot of a reading (a cache's index, a group's state): what
// it is a snapshot of, and after which records. The body is the reading's own.
//
// On disk: magic "FLSN", version u16 1, reserved u16, content u32, body_crc u32, as_of
// u64, reserved u32, header_crc u32 over bytes 0..28, then the body to the end of file.
type SnapshotHead struct {
	Content uint32 // format of the body, named and versioned by the reading
	AsOf    Offset // one past the last record that is in it
}

// AppendSnapshot appends the bytes of a snapshot file.
func AppendSnapshot(dst []byte, h SnapshotHead, body []byte) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, snapshotMagic)
	dst = binary.BigEndian.AppendUint16(dst, snapshotVersion)
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, h.Content)
	dst = binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(body))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.AsOf))
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:at+28]))
	return append(dst, body...)
}

// DecodeSnapshot reads a snapshot file of the wanted content; name is for the error. The
// body is a view of b. The error is a *Corruption; the caller then rebuilds from the log,
// as it does when AsOf is not within it.
func DecodeSnapshot(b []byte, name string, content uint32) (SnapshotHead, []byte, error) {
	if len(b) < snapshotHeaderSize {
		return SnapshotHead{}, nil, sideDamage(name, "%d bytes of a header of %d", len(b), snapshotHeaderSize)
	}
	if c := checkSide(name, b, snapshotMagic, snapshotVersion); c != nil {
		return SnapshotHead{}, nil, c
	}
	if got, want := crc32.ChecksumIEEE(b[:28]), binary.BigEndian.Uint32(b[28:]); got != want {
		return SnapshotHead{}, nil, sideDamage(name, "header checksum stored %08x, computed %08x", want, got)
	}
	if got := binary.BigEndian.Uint32(b[8:]); got != content {
		return SnapshotHead{}, nil, sideDamage(name, "it holds %08x, not %08x", got, content)
	}
	body := b[snapshotHeaderSize:]
	if got, want := crc32.ChecksumIEEE(body), binary.BigEndian.Uint32(b[12:]); got != want {
		return SnapshotHead{}, nil, sideDamage(name, "checksum stored %08x, computed %08x", want, got)
	}
	return SnapshotHead{Content: content, AsOf: Offset(binary.BigEndian.Uint64(b[16:]))}, body, nil
}

// WriteSnapshot replaces the snapshot dir/name.
func WriteSnapshot(fsys vfs.FS, dir, name string, h SnapshotHead, body []byte) error {
	return WriteFile(fsys, dir, name, AppendSnapshot(nil, h, body))
}

// ReadSnapshot reads the snapshot dir/name: false if it is missing, damaged or of other
// content. The error is of the file system.
func ReadSnapshot(fsys vfs.FS, dir, name string, content uint32) (SnapshotHead, []byte, bool, error) {
	b, err := ReadFile(fsys, dir, name, MaxSnapshotSize)
	if err == nil {
		var h SnapshotHead
		var body []byte
		if h, body, err = DecodeSnapshot(b, name, content); err == nil {
			return h, body, true, nil
		}
	}
	if _, damaged := errors.AsType[*Corruption](err); damaged || errors.Is(err, fs.ErrNotExist) {
		return SnapshotHead{}, nil, false, nil
	}
	return SnapshotHead{}, nil, false, fmt.Errorf("segment: read %s: %w", name, err)
}
