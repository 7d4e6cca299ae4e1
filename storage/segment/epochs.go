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
	epochsMagic      = 0x464C4550 // "FLEP"
	epochsVersion    = 1
	epochsHeaderSize = 12
	epochEntrySize   = 16

	// MaxEpochs is how many generations the file epochs can hold.
	MaxEpochs = 1<<16 - 1
)

// AppendEpochs appends the bytes of the file epochs. Of more than MaxEpochs starts the
// newest are kept.
func AppendEpochs(dst []byte, starts []GenerationStart) []byte {
	if len(starts) > MaxEpochs {
		starts = starts[len(starts)-MaxEpochs:]
	}
	dst = binary.BigEndian.AppendUint32(dst, epochsMagic)
	dst = binary.BigEndian.AppendUint16(dst, epochsVersion)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(starts)))
	sum := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	for _, s := range starts {
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.Generation))
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.Start))
	}
	binary.BigEndian.PutUint32(dst[sum:], crc32.ChecksumIEEE(dst[sum+4:]))
	return dst
}

// DecodeEpochs reads the file epochs. Generations ascend and starts do not descend. The
// error is a *Corruption; the caller then takes the file as empty.
func DecodeEpochs(b []byte) ([]GenerationStart, error) {
	if len(b) < epochsHeaderSize {
		return nil, sideDamage(EpochsName, "%d bytes of a header of %d", len(b), epochsHeaderSize)
	}
	if c := checkSide(EpochsName, b, epochsMagic, epochsVersion); c != nil {
		return nil, c
	}
	n := int(binary.BigEndian.Uint16(b[6:]))
	body := b[epochsHeaderSize:]
	if len(body) != n*epochEntrySize {
		return nil, sideDamage(EpochsName, "%d bytes for %d entries", len(body), n)
	}
	if got, want := crc32.ChecksumIEEE(body), binary.BigEndian.Uint32(b[8:]); got != want {
		return nil, sideDamage(EpochsName, "checksum stored %08x, computed %08x", want, got)
	}
	starts := make([]GenerationStart, n)
	for i := range starts {
		starts[i] = GenerationStart{
			Generation: Generation(binary.BigEndian.Uint64(body[i*epochEntrySize:])),
			Start:      Offset(binary.BigEndian.Uint64(body[i*epochEntrySize+8:])),
		}
		if i > 0 && (starts[i].Generation <= starts[i-1].Generation || starts[i].Start < starts[i-1].Start) {
			return nil, sideDamage(EpochsName, "entry %d does not follow the one before it", i)
		}
	}
	return starts, nil
}

// WriteEpochs replaces dir's epochs file.
func WriteEpochs(fsys vfs.FS, dir string, starts []GenerationStart) error {
	return WriteFile(fsys, dir, EpochsName, AppendEpochs(nil, starts))
}

// ReadEpochs reads dir's epochs file: nothing if it is missing or damaged, for the log
// itself says what it says. The error is of the file system.
func ReadEpochs(fsys vfs.FS, dir string) ([]GenerationStart, error) {
	b, err := ReadFile(fsys, dir, EpochsName, epochsHeaderSize+MaxEpochs*epochEntrySize)
	if err == nil {
		var starts []GenerationStart
		if starts, err = DecodeEpochs(b); err == nil {
			return starts, nil
		}
	}
	if _, damaged := errors.AsType[*Corruption](err); damaged || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, fmt.Errorf("segment: read %s: %w", EpochsName, err)
}
