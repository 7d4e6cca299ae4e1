package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/felixlog/felix/storage/vfs"
)

const (
	markMagic   = 0x464C534D // "FLSM"
	markVersion = 1
	markSize    = 32
	markFileMax = 4096 // of the file that holds it
)

// Mark says how far the active segment is known to be on the device. It never runs
// ahead of the device.
type Mark struct {
	Segment     ID
	SyncedBytes int64 // bytes of Segment, from its start
}

// Before says whether m is an earlier place in the log than o.
func (m Mark) Before(o Mark) bool {
	return m.Segment < o.Segment || m.Segment == o.Segment && m.SyncedBytes < o.SyncedBytes
}

// Covers says whether the byte at position of segment id is below the mark.
func (m Mark) Covers(id ID, position int64) bool {
	return id < m.Segment || id == m.Segment && position < m.SyncedBytes
}

// AppendMark appends the bytes of durable.mark.
func AppendMark(dst []byte, m Mark) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, markMagic)
	dst = binary.BigEndian.AppendUint16(dst, markVersion)
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Segment))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.SyncedBytes))
	dst = binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:at+24]))
	return binary.BigEndian.AppendUint32(dst, 0)
}

// DecodeMark reads durable.mark. Bytes behind it are not looked at: a file that is rewritten
// in place keeps a length it once had. The error is a *Corruption; the caller then takes the
// mark as absent.
func DecodeMark(b []byte) (Mark, error) {
	if len(b) < markSize {
		return Mark{}, sideDamage(MarkName, "%d bytes of %d", len(b), markSize)
	}
	if c := checkSide(MarkName, b, markMagic, markVersion); c != nil {
		return Mark{}, c
	}
	if got, want := crc32.ChecksumIEEE(b[:24]), binary.BigEndian.Uint32(b[24:]); got != want {
		return Mark{}, sideDamage(MarkName, "checksum stored %08x, computed %08x", want, got)
	}
	m := Mark{Segment: ID(binary.BigEndian.Uint64(b[8:])), SyncedBytes: int64(binary.BigEndian.Uint64(b[16:]))}
	if m.SyncedBytes < 0 {
		return Mark{}, sideDamage(MarkName, "%d synced bytes", uint64(m.SyncedBytes))
	}
	return m, nil
}

// checkSide verifies magic and version, which every side file begins with.
func checkSide(name string, b []byte, magic uint32, version uint16) *Corruption {
	if len(b) < 8 {
		return sideDamage(name, "%d bytes", len(b))
	}
	if m := binary.BigEndian.Uint32(b); m != magic {
		return sideDamage(name, "it begins with %08x, not with %08x", m, magic)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != version {
		return sideDamage(name, "version %d is not supported; version %d is", v, version)
	}
	return nil
}

// WriteMark rewrites an open durable.mark in place. It does not flush: the owner does,
// at its own times.
func WriteMark(f vfs.File, m Mark) error {
	var buf [markSize]byte
	b := AppendMark(buf[:0], m)
	if n, err := f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("segment: write %s: %w", MarkName, err)
	} else if n < len(b) {
		return fmt.Errorf("segment: write %s: %w", MarkName, io.ErrShortWrite)
	}
	return nil
}

// ReadMark reads dir's durable.mark: false if it is missing or damaged, which is the
// same thing to a caller. The error is of the file system.
func ReadMark(fsys vfs.FS, dir string) (Mark, bool, error) {
	b, err := ReadFile(fsys, dir, MarkName, markFileMax)
	if err == nil {
		var m Mark
		if m, err = DecodeMark(b); err == nil {
			return m, true, nil
		}
	}
	if _, damaged := errors.AsType[*Corruption](err); damaged || errors.Is(err, fs.ErrNotExist) {
		return Mark{}, false, nil
	}
	return Mark{}, false, fmt.Errorf("segment: read %s: %w", MarkName, err)
}
