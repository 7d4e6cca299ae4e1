package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/felixlog/felix/storage/segment"
)

// Archive is a backup that was verified.
type Archive struct {
	Manifest
	file    io.ReaderAt
	entries map[string]entry
}

// entry is the content of one entry.
type entry struct {
	at, size int64
	sum      Checksum
}

// Options are those of Open.
type Options struct {
	// Progress is told how many more bytes were verified; nil: nobody is. Of a file of n
	// bytes it hears of about 2n, for the records are read once more.
	Progress func(bytes int64)
}

// Open verifies the backup in r, size bytes long: names, lengths, checksums, that every
// entry is one the manifest names and the other way round, that the definitions are
// valid and their logs complete, and every record. Nothing is written and nothing is
// believed before. Errors: *RefusedError, ctx's, what r says.
func Open(ctx context.Context, r io.ReaderAt, size int64, o Options) (*Archive, error) {
	if o.Progress == nil {
		o.Progress = func(int64) {}
	}
	a := &Archive{file: r, entries: map[string]entry{}}
	v := &verifier{Archive: a, size: size, progress: o.Progress, in: &counted{r: io.NewSectionReader(r, 0, size)}}
	if err := v.read(ctx); err != nil {
		return nil, err
	}
	if err := v.check(); err != nil {
		return nil, at(err, manifestName, v.manifestAt)
	}
	for i := range a.Logs {
		l := &a.Logs[i]
		for j := range l.Segments {
			if err := v.records(ctx, l, &l.Segments[j]); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

// Segment is the content of the j-th segment of the i-th log.
func (a *Archive) Segment(i, j int) io.Reader {
	l := &a.Logs[i]
	return a.content(l.entry(l.Segments[j].ID))
}

// Secret is the content of the i-th secret.
func (a *Archive) Secret(i int) io.Reader { return a.content(secretsDir + "/" + a.Secrets[i].Path) }

// content reads an entry again, and fails where it is not what was verified.
func (a *Archive) content(name string) io.Reader {
	e := a.entries[name]
	return &again{in: io.NewSectionReader(a.file, e.at, e.size), name: name, entry: e}
}

// again is an entry read for the second time: the file may have changed since.
type again struct {
	in   io.Reader
	name string
	entry
	got int64
	now uint32
}

func (a *again) Read(p []byte) (int, error) {
	n, err := a.in.Read(p)
	a.got += int64(n)
	a.now = crc32.Update(a.now, crc32.IEEETable, p[:n])
	if errors.Is(err, io.EOF) && (a.got != a.size || Checksum(a.now) != a.sum) {
		err = at(damaged("was changed after it had been verified"), a.name, a.at)
	}
	return n, err
}

// counted counts what was read. It hides that the file can seek, so that every byte
// between two entries is read too.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// verifier reads a backup from its beginning to its end.
type verifier struct {
	*Archive
	size       int64
	in         *counted
	progress   func(int64)
	head       head
	manifestAt int64
}

// read goes through the entries and leaves the manifest decoded.
func (v *verifier) read(ctx context.Context) error {
	r := tar.NewReader(v.in)
	if err := v.first(r); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := r.Next()
		pos := v.in.n
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return at(refused(ErrIncomplete, "is the end, and there is no %s", manifestName), "", pos)
		case errors.Is(err, tar.ErrHeader):
			return at(damaged("is no entry of a tar file, behind %d good ones", len(v.entries)+1), "", pos)
		case err != nil:
			return err
		}
		if err := v.header(h, pos); err != nil {
			return at(err, h.Name, pos)
		}
		if h.Name == manifestName {
			return v.last(r, h, pos)
		}
		if err := v.entry(r, h, pos); err != nil {
			return at(err, h.Name, pos)
		}
	}
}

// first reads the entry that says what the file is.
func (v *verifier) first(r *tar.Reader) error {
	h, err := r.Next()
	if err == nil && (h.Name != headName || h.Size > maxHead) {
		err = tar.ErrHeader
	}
	switch {
	case errors.Is(err, tar.ErrHeader), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refused(ErrNotBackup, "begins otherwise than with the entry %s", headName)
	case err != nil:
		return err
	}
	pos := v.in.n
	if err := v.header(h, pos); err != nil {
		return at(err, headName, pos)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return at(cut(err), headName, pos)
	}
	if err := json.Unmarshal(raw, &v.head); err != nil {
		return at(refused(ErrNotBackup, "cannot be read: %v", err), headName, pos)
	}
	return at(checkFormat(v.head.Format, v.head.Version), headName, pos)
}

// header refuses entries that are not plain files, or longer than the file.
func (v *verifier) header(h *tar.Header, pos int64) error {
	switch {
	case h.Typeflag != tar.TypeReg:
		return damaged("is not a file (type %q)", string(h.Typeflag))
	case h.Size < 0 || h.Size > v.size-pos:
		return refused(ErrIncomplete, "has %d bytes, and the file ends after %d", h.Size, v.size-pos)
	}
	for key := range h.PAXRecords {
		// Sparse files among others: their length is not that of what is stored.
		if key != "path" && key != "size" {
			return damaged("has the attribute %.40q", key)
		}
	}
	return nil
}

// cut says that the file ends in the middle of an entry.
func cut(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refused(ErrIncomplete, "is cut off")
	}
	return err
}

// entry reads a segment or a secret.
func (v *verifier) entry(r io.Reader, h *tar.Header, pos int64) error {
	name, ok := parseName(h.Name)
	switch {
	case !ok:
		return damaged("has a name that no entry of a backup has")
	case name.secret != "" && h.Size > MaxSecretBytes:
		return damaged("has %d bytes, at most %d", h.Size, MaxSecretBytes)
	case len(v.entries) >= maxEntries:
		return damaged("is more than a backup holds: at most %d", maxEntries)
	}
	if _, twice := v.entries[h.Name]; twice {
		return damaged("is there a second time")
	}
	sum := &summed{w: io.Discard, sum: crc32.NewIEEE()}
	if _, err := io.Copy(sum, &told{r, v.progress}); err != nil {
		return cut(err)
	}
	v.entries[h.Name] = entry{pos, h.Size, Checksum(sum.sum.Sum32())}
	return nil
}

// told says how much is read.
type told struct {
	io.Reader
	progress func(int64)
}

func (t *told) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	t.progress(int64(n))
	return n, err
}

// last reads the manifest, and that nothing but the end follows it.
func (v *verifier) last(r io.Reader, h *tar.Header, pos int64) error {
	v.manifestAt = pos
	if h.Size > maxManifest {
		return at(damaged("has %d bytes, at most %d", h.Size, maxManifest), h.Name, pos)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return at(cut(err), h.Name, pos)
	}
	m, err := decodeManifest(raw)
	if err != nil {
		return at(err, h.Name, pos)
	}
	v.Manifest = *m
	// What is left of the block of the manifest, and the two blocks that end a tar file.
	const block = 512
	want := (block-h.Size%block)%block + 2*block
	end := v.in.n
	rest, err := io.ReadAll(io.LimitReader(v.in, want))
	switch {
	case err != nil:
		return err
	case int64(len(rest)) < want:
		return at(refused(ErrIncomplete, "is cut off"), "", end)
	case len(bytes.TrimLeft(rest, "\x00")) > 0 || v.in.n != v.size:
		return at(damaged("is not the end: something follows the manifest"), "", end)
	}
	return nil
}

// records verifies the records of a segment.
func (v *verifier) records(ctx context.Context, l *Log, s *Segment) error {
	name := l.entry(s.ID)
	e := v.entries[name]
	in := io.NewSectionReader(v.file, e.at, e.size)
	bad := func(format string, args ...any) error { return at(damaged(format, args...), name, e.at) }
	state, header, _, err := segment.HeaderState(ctx, in, e.size)
	switch {
	case err != nil:
		return err
	case state != segment.HeaderGood:
		return bad("does not begin as a segment")
	case header.BaseOffset != s.Base:
		return bad("begins at offset %d, and the manifest says %d", header.BaseOffset, s.Base)
	}
	res, err := segment.Scan(ctx, in, e.size, segment.ScanStart{Shard: l.LogName.String(), Segment: s.ID}, func(r *segment.Record) error {
		v.progress(int64(r.Size))
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", name, err)
	case res.Damage != nil:
		return bad("holds a damaged record: %v", res.Damage)
	case res.Next != s.Next:
		return bad("ends before offset %d, and the manifest says %d", res.Next, s.Next)
	}
	return nil
}
