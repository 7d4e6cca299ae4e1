package projection

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// The snapshot file: a 48-byte header, then blocks, all integers big-endian.
//
//	header: magic "FLPX" | version u16 | codec u16 | from u64 | until u64 | last u32 |
//	        entries u64 | reserved u64 | header_crc u32 over the 44 bytes before it
//	block:  length u32 | crc u32 over the body | body, entries one after another
//	entry:  offset u64 | version u64 | expires u64 | size u32 | key_len u16 | key
//
// Entries may name records anywhere below until; the log is read again from from, so
// what was applied while the file was written is met twice and settles to the same
// index. last is the checksum of the record before until: a log that no longer holds
// that record there is another log, and the file is dropped.
const (
	SnapshotName = "snapshot"

	snapshotMagic      = 0x464C5058
	snapshotVersion    = 1
	snapshotHeaderSize = 48
	snapshotBlock      = 128 << 10
	snapshotEntryMin   = 8 + 8 + 8 + 4 + 2
)

// ErrSnapshot is wrapped by every reason not to believe a snapshot.
var ErrSnapshot = errors.New("projection: snapshot not usable")

// Records names the records of a log; *storage.Log does.
type Records interface {
	RecordID(ctx context.Context, off storage.Offset) (storage.RecordID, error)
}

// SaveSnapshot writes the index to dir through a temporary, flushed before it takes
// the old one's place. It takes the read lock for one block at a time, so applying
// goes on beside it. The caller has made everything below Applied durable if the log
// is to find the snapshot usable after a power cut; if not, it is merely dropped.
// codec tells the owners' files apart.
func (p *Projection) SaveSnapshot(ctx context.Context, fsys vfs.FS, dir string, codec uint16, log Records) (err error) {
	tmp, name := dir+"/"+SnapshotName+".tmp", dir+"/"+SnapshotName
	f, err := fsys.OpenFile(tmp, vfs.Create)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err == nil {
			if err = fsys.Rename(tmp, name); err == nil {
				err = fsys.SyncDir(dir)
			}
		}
		if err != nil {
			err = fmt.Errorf("write snapshot %s: %w", name, err)
			_ = fsys.Remove(tmp) // the error above is the one to report
		}
	}()
	if err := f.Truncate(0); err != nil {
		return err
	}
	from := p.Applied()
	entries, pos := uint64(0), int64(snapshotHeaderSize)
	buf := make([]byte, 0, snapshotBlock+MaxKeyBytes+64)
	for n, more := 0, true; more; {
		buf, n, more = p.snapshotBlock(buf[:0], n, &entries)
		if len(buf) > 8 {
			if _, err := f.WriteAt(buf, pos); err != nil {
				return err
			}
			pos += int64(len(buf))
		}
	}
	until := p.Applied()
	var last uint32
	if until > 0 {
		id, err := log.RecordID(ctx, until-1)
		if err != nil {
			return err
		}
		last = id.Checksum
	}
	header := make([]byte, snapshotHeaderSize)
	binary.BigEndian.PutUint32(header[0:], snapshotMagic)
	binary.BigEndian.PutUint16(header[4:], snapshotVersion)
	binary.BigEndian.PutUint16(header[6:], codec)
	binary.BigEndian.PutUint64(header[8:], uint64(from))
	binary.BigEndian.PutUint64(header[16:], uint64(until))
	binary.BigEndian.PutUint32(header[24:], last)
	binary.BigEndian.PutUint64(header[28:], entries)
	binary.BigEndian.PutUint32(header[44:], crc32.ChecksumIEEE(header[:44]))
	if _, err := f.WriteAt(header, 0); err != nil {
		return err
	}
	return f.Sync()
}

// snapshotBlock appends one block of entries, beginning with entry number n.
func (p *Projection) snapshotBlock(buf []byte, n int, entries *uint64) (block []byte, next int, more bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	buf = append(buf, make([]byte, 8)...)
	x := p.mu.index
	for n < int(x.next) && len(buf) < snapshotBlock {
		step := min(n+64, int(x.next))
		x.eachFrom(n, step, func(key []byte, r Ref) bool {
			buf = binary.BigEndian.AppendUint64(buf, uint64(r.Offset))
			buf = binary.BigEndian.AppendUint64(buf, uint64(r.Version))
			buf = binary.BigEndian.AppendUint64(buf, uint64(r.Expires))
			buf = binary.BigEndian.AppendUint32(buf, r.Size)
			buf = binary.BigEndian.AppendUint16(buf, uint16(len(key)))
			buf = append(buf, key...)
			*entries++
			return true
		})
		n = step
	}
	binary.BigEndian.PutUint32(buf[0:], uint32(len(buf)-8))
	binary.BigEndian.PutUint32(buf[4:], crc32.ChecksumIEEE(buf[8:]))
	return buf, n, n < int(x.next)
}

// maxSnapshotBlock bounds what a block's length may ask for: a full block and the 64
// entries of the step that filled it.
const maxSnapshotBlock = snapshotBlock + 64*(snapshotEntryMin+MaxKeyBytes)

// LoadSnapshot fills an empty projection from dir's snapshot, for a log that holds
// [head, end). Afterwards Applied is where the log has to be read from. A missing file
// is fs.ErrNotExist; any doubt is an error wrapping ErrSnapshot; after either the
// projection is as New made it.
func (p *Projection) LoadSnapshot(ctx context.Context, fsys vfs.FS, dir string, codec uint16, head, end segment.Offset, log Records) error {
	f, err := fsys.OpenFile(dir+"/"+SnapshotName, vfs.ReadOnly)
	if err != nil {
		return err
	}
	index, applied, err := readSnapshot(ctx, f, codec, head, end, log)
	if err := errors.Join(err, f.Close()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.index, p.mu.applied, p.mu.named = index, applied, named{}
	index.Each(func(_ []byte, ref Ref) bool { p.mu.named.add(ref.Offset); return true })
	return nil
}

func readSnapshot(ctx context.Context, f vfs.File, codec uint16, head, end segment.Offset, log Records) (*Index, segment.Offset, error) {
	size, err := f.Size()
	if err != nil {
		return nil, 0, err
	}
	header := make([]byte, snapshotHeaderSize)
	if size < snapshotHeaderSize {
		return nil, 0, fmt.Errorf("%d bytes, shorter than a header", size)
	}
	if _, err := f.ReadAt(header, 0); err != nil {
		return nil, 0, err
	}
	switch {
	case binary.BigEndian.Uint32(header) != snapshotMagic:
		return nil, 0, errors.New("wrong magic")
	case crc32.ChecksumIEEE(header[:44]) != binary.BigEndian.Uint32(header[44:]):
		return nil, 0, errors.New("header checksum does not match")
	case binary.BigEndian.Uint16(header[4:]) != snapshotVersion:
		return nil, 0, fmt.Errorf("version %d", binary.BigEndian.Uint16(header[4:]))
	case binary.BigEndian.Uint16(header[6:]) != codec:
		return nil, 0, fmt.Errorf("codec %d, want %d", binary.BigEndian.Uint16(header[6:]), codec)
	}
	from := segment.Offset(binary.BigEndian.Uint64(header[8:]))
	until := segment.Offset(binary.BigEndian.Uint64(header[16:]))
	entries := binary.BigEndian.Uint64(header[28:])
	if from > until || until > end || from < head {
		return nil, 0, fmt.Errorf("covers [%d, %d), the log holds [%d, %d)", from, until, head, end)
	}
	if until > 0 {
		// Below head there is nothing to compare with, and that is doubt enough.
		if until <= head {
			return nil, 0, fmt.Errorf("ends at %d, the log begins at %d", until, head)
		}
		id, err := log.RecordID(ctx, until-1)
		if err != nil {
			return nil, 0, err
		}
		if want := binary.BigEndian.Uint32(header[24:]); id.Checksum != want {
			return nil, 0, fmt.Errorf("record %d has checksum %08x, the snapshot was cut after %08x", until-1, id.Checksum, want)
		}
	}
	x, read := NewIndex(), uint64(0)
	var block []byte
	for pos := int64(snapshotHeaderSize); pos < size; {
		var lead [8]byte
		if size-pos < 8 {
			return nil, 0, fmt.Errorf("torn block at %d", pos)
		}
		if _, err := f.ReadAt(lead[:], pos); err != nil {
			return nil, 0, err
		}
		n := int64(binary.BigEndian.Uint32(lead[:]))
		if n > maxSnapshotBlock || n > size-pos-8 {
			return nil, 0, fmt.Errorf("block of %d bytes at %d", n, pos)
		}
		if int64(cap(block)) < n {
			block = make([]byte, n)
		}
		block = block[:n]
		if _, err := f.ReadAt(block, pos+8); err != nil {
			return nil, 0, err
		}
		if crc32.ChecksumIEEE(block) != binary.BigEndian.Uint32(lead[4:]) {
			return nil, 0, fmt.Errorf("block checksum at %d does not match", pos)
		}
		k, err := readEntries(x, block, until)
		if err != nil {
			return nil, 0, fmt.Errorf("block at %d: %w", pos, err)
		}
		read += k
		pos += 8 + n
	}
	if read != entries {
		return nil, 0, fmt.Errorf("%d entries, the header says %d", read, entries)
	}
	return x, from, nil
}

// readEntries puts the entries of a block into x and counts them. A key that was
// deleted and written again while the file was made stands in it twice; the later
// entry is the newer.
func readEntries(x *Index, b []byte, until segment.Offset) (n uint64, err error) {
	for ; len(b) > 0; n++ {
		if len(b) < snapshotEntryMin {
			return n, errors.New("torn entry")
		}
		ref := Ref{
			Offset:  segment.Offset(binary.BigEndian.Uint64(b)),
			Version: segment.Offset(binary.BigEndian.Uint64(b[8:])),
			Expires: Millis(binary.BigEndian.Uint64(b[16:])),
			Size:    binary.BigEndian.Uint32(b[24:]),
		}
		keyLen := int(binary.BigEndian.Uint16(b[28:]))
		if len(b)-snapshotEntryMin < keyLen {
			return n, errors.New("torn key")
		}
		if ref.Offset >= until || ref.Version > ref.Offset {
			return n, fmt.Errorf("entry names record %d (version %d), the snapshot ends at %d", ref.Offset, ref.Version, until)
		}
		if _, _, err := x.Put(b[snapshotEntryMin:snapshotEntryMin+keyLen], ref); err != nil {
			return n, err
		}
		b = b[snapshotEntryMin+keyLen:]
	}
	return n, nil
}
