package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/felixlog/felix/storage"
)

// Writer writes a backup. A backup is complete once Close has returned without an error,
// and only then; after an error nothing more can be written.
type Writer struct {
	tar *tar.Writer
	at  time.Time
	m   Manifest
}

// NewWriter begins a backup. bytes is how much the segments and secrets will come to,
// which readers show as progress and hold the end against.
func NewWriter(w io.Writer, o Origin, d Definitions, bytes int64) (*Writer, error) {
	b := &Writer{tar: tar.NewWriter(w), at: o.CreatedAt, m: Manifest{Origin: o, Definitions: d}}
	raw, err := json.Marshal(head{Format, Version, bytes})
	if err != nil {
		return nil, err
	}
	return b, b.file(headName, raw)
}

// header begins an entry.
func (b *Writer) header(name string, size int64) error {
	return b.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: b.at.Truncate(time.Second)})
}

func (b *Writer) file(name string, raw []byte) error {
	if err := b.header(name, int64(len(raw))); err != nil {
		return fmt.Errorf("backup entry %s: %w", name, err)
	}
	_, err := b.tar.Write(raw)
	return err
}

// Log writes a log to its cut, which was made at the time given.
func (b *Writer) Log(ctx context.Context, name LogName, cutAt time.Time, c *storage.Copy) error {
	l := Log{LogName: name, First: c.Head, Next: c.End, CutAt: cutAt}
	for i, s := range c.Segments {
		entry := name.entry(s.ID)
		if err := b.header(entry, s.Bytes); err != nil {
			return fmt.Errorf("backup entry %s: %w", entry, err)
		}
		sum := &summed{w: b.tar, sum: crc32.NewIEEE()}
		if err := c.WriteSegment(ctx, i, sum); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
		l.Segments = append(l.Segments, Segment{ID: s.ID, Base: s.Base, Next: s.Next, Bytes: s.Bytes, Checksum: Checksum(sum.sum.Sum32())})
	}
	b.m.Logs = append(b.m.Logs, l)
	return nil
}

// Secret writes a file of keys or certificates; path is where it is below the data
// directory, one that SecretPath accepts.
func (b *Writer) Secret(path string, raw []byte) error {
	if !SecretPath(path) || len(raw) > MaxSecretBytes {
		return fmt.Errorf("backup: %s of %d bytes is no file of keys", path, len(raw))
	}
	b.m.Secrets = append(b.m.Secrets, Secret{path, int64(len(raw)), Checksum(crc32.ChecksumIEEE(raw))})
	return b.file(secretsDir+"/"+path, raw)
}

// Close writes the manifest and the end.
func (b *Writer) Close() error {
	raw, err := encodeManifest(&b.m)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := b.file(manifestName, raw); err != nil {
		return err
	}
	return b.tar.Close()
}

// summed adds up what passes through it.
type summed struct {
	w   io.Writer
	sum hash.Hash32
}

func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.sum.Write(p[:n]) // never fails
	return n, err
}

// Expected is how many bytes of segments and secrets a backup will hold, told from its
// first bytes; false while there are too few of them, or if they are of something else.
func Expected(first []byte) (int64, bool) {
	r := tar.NewReader(bytes.NewReader(first))
	h, err := r.Next()
	if err != nil || h.Name != headName || h.Size > maxHead {
		return 0, false
	}
	var begin head
	if err := json.NewDecoder(io.LimitReader(r, maxHead)).Decode(&begin); err != nil || begin.Format != Format {
		return 0, false
	}
	return begin.Bytes, true
}
