package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/felixlog/felix/internal/archive"
	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
	"github.com/felixlog/felix/internal/dirlock"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// restoringName marks a directory into which a backup is being restored. It is the first
// thing that is written and the last that is removed; no broker starts beside it.
const restoringName = "RESTORING"

// ErrNotEmpty is the reason of a DirError: a backup is restored into nothing.
var ErrNotEmpty = errors.New("is not empty")

// ErrRestoring is the reason of a DirError: a restore did not end.
var ErrRestoring = errors.New("holds a restore that did not end")

const restoringHint = "run `felix restore` again with the same directory, which begins anew, or empty it"

// RestoreOptions are those of Restore.
type RestoreOptions struct {
	// FS is the file system of the data; nil is the host's.
	FS vfs.FS
	// Progress is told how many more bytes were written; nil: nobody is.
	Progress func(bytes int64)
}

// Restore makes dir the data directory of a new broker that has what a verified backup
// holds: the same records at the same offsets, positions, values and sums. It is another
// broker: its disk id, the incarnations of its streams and caches and, unless the backup
// has them, its keys and certificates are new.
//
// dir is made, or empty, or holds a restore that did not end, which is begun anew. When
// Restore returns without an error everything is on the device. Stopped anywhere before,
// it leaves the directory as empty as it was, or one that no broker starts on.
// Errors: *DirError with ErrNotEmpty, ErrInUse, ErrNotDir or what the system said.
func Restore(ctx context.Context, a *archive.Archive, dir string, o RestoreOptions) error {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	r := &restore{Archive: a, dir: dir, fs: o.FS, progress: o.Progress, keys: ensureKeys}
	if r.progress == nil {
		r.progress = func(int64) {}
	}
	return r.run(ctx)
}

type restore struct {
	*archive.Archive
	dir      string
	fs       vfs.FS
	progress func(int64)
	keys     func(dir string, tenants []meta.Tenant) error
}

func (r *restore) fail(err error, hint string) error {
	return &DirError{Dir: r.dir, Err: err, Hint: hint}
}

func (r *restore) run(ctx context.Context) (err error) {
	// What is refused is refused before anything is made, the directory and its lock too.
	if err := r.judge(); err != nil {
		return err
	}
	if err := mkdirDurable(r.fs, r.dir); err != nil {
		return r.fail(cause(err), hint(err))
	}
	lock, err := r.fs.Lock(filepath.Join(r.dir, lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return r.fail(ErrInUse, "a broker, or another restore, has it")
	}
	if err != nil {
		return r.fail(cause(err), hint(err))
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	again, err := r.look()
	if err != nil {
		return err
	}
	if again {
		if err := r.clear(); err != nil {
			return err
		}
	} else if err := writeFile(r.fs, r.dir, restoringName, []byte("a backup is being restored here\n")); err != nil {
		return r.fail(cause(err), hint(err))
	}
	if err := r.write(ctx); err != nil {
		return fmt.Errorf("restore into %s: %w", r.dir, err)
	}
	if err := r.fs.Remove(filepath.Join(r.dir, restoringName)); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}

// judge refuses a directory that cannot be restored into, made already or not.
func (r *restore) judge() error {
	info, err := r.fs.Stat(r.dir)
	switch {
	case err == nil && !info.IsDir():
		return r.fail(ErrNotDir, "name a directory")
	case err == nil:
		if _, err := r.look(); err != nil {
			return err
		}
	}
	return r.room()
}

// look refuses a directory that is in use. again: it holds a restore that did not end.
func (r *restore) look() (again bool, err error) {
	entries, err := r.fs.ReadDir(r.dir)
	if err != nil {
		return false, r.fail(cause(err), hint(err))
	}
	var found string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == restoringName:
			again = true
		case name == lockName, name == restoringName+".tmp", name == "lost+found" && e.IsDir():
		case ownNames[name]:
			found = name
		default:
			return false, r.fail(fmt.Errorf("%w (%s)", ErrNotEmpty, name), "name an empty directory, or one that is not there yet")
		}
	}
	if found != "" && !again {
		return false, r.fail(fmt.Errorf("%w (%s)", ErrNotEmpty, found), "name an empty directory: a broker's data is never written over")
	}
	return again, nil
}

// room refuses a backup that the file system cannot hold.
func (r *restore) room() error {
	usage, err := usageOf(r.fs, r.dir)
	if err != nil {
		return r.fail(cause(err), hint(err))
	}
	if need := r.Totals().Bytes; usage.Free < need {
		return r.fail(fmt.Errorf("has room for %d bytes, and the backup holds %d", usage.Free, need), "make room, or choose another disk")
	}
	return nil
}

// clear removes what a restore that did not end has written.
func (r *restore) clear() error {
	for name := range ownNames {
		if name == lockName {
			continue
		}
		if err := r.fs.RemoveAll(filepath.Join(r.dir, name)); err != nil {
			return r.fail(cause(err), hint(err))
		}
	}
	if err := r.fs.SyncDir(r.dir); err != nil {
		return r.fail(cause(err), hint(err))
	}
	return nil
}

// write writes everything. Directories are flushed after what is in them.
func (r *restore) write(ctx context.Context) (err error) {
	incarnations, err := r.define(ctx)
	if err != nil {
		return err
	}
	root := filepath.Join(r.dir, logsDir)
	made := newDirs(r.fs, r.dir)
	if err := made.add(root); err != nil {
		return err
	}
	// The storage directory's own, as a broker's: storage.dir of another may name it.
	lock, err := dirlock.Take(r.fs, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	for i := range r.Logs {
		l := &r.Logs[i]
		dir := broker.RestoreDir(root, l.LogName)
		if err := made.add(dir); err != nil {
			return err
		}
		for j := range l.Segments {
			if err := r.file(ctx, filepath.Join(dir, segment.SegmentName(l.Segments[j].ID)), r.Segment(i, j)); err != nil {
				return err
			}
		}
		if err := r.mark(dir, l); err != nil {
			return err
		}
		if l.Kind == archive.KindGroups {
			continue
		}
		if err := broker.RestoreIncarnation(r.fs, dir, incarnations[incarnationOf(l.LogName)]); err != nil {
			return err
		}
	}
	for i, s := range r.Secrets {
		path := filepath.Join(r.dir, filepath.FromSlash(s.Path))
		if err := made.add(filepath.Dir(path)); err != nil {
			return err
		}
		if err := r.file(ctx, path, r.Secret(i)); err != nil {
			return err
		}
	}
	if err := r.keys(filepath.Join(r.dir, keysDir), r.Tenants); err != nil {
		return err
	}
	if err := made.sync(); err != nil {
		return err
	}
	d := &DataDir{Root: r.dir, fs: r.fs, stored: nodeFile{Format: dataFormat, DiskID: randomID(), BootID: machineBoot(), Clean: true}}
	return d.store()
}

// mark has the log in dir say that all of it is on the device, which it is: were there no
// mark, the first open could not tell whether records are missing from the end.
func (r *restore) mark(dir string, l *archive.Log) error {
	if len(l.Segments) == 0 {
		return nil
	}
	last := l.Segments[len(l.Segments)-1]
	return segment.WriteFile(r.fs, dir, segment.MarkName, segment.AppendMark(nil, segment.Mark{Segment: last.ID, SyncedBytes: last.Bytes}))
}

// incarnationOf names the stream or cache that a log is of.
func incarnationOf(n archive.LogName) archive.LogName {
	if n.Kind == archive.KindCounters {
		n.Kind = archive.KindCache
	}
	n.Shard = 0
	return n
}

// define writes the definitions, and gives the incarnations they got.
func (r *restore) define(ctx context.Context) (_ map[archive.LogName]uint64, err error) {
	dir := filepath.Join(r.dir, metaDir)
	if err := mkdirDurable(r.fs, dir); err != nil {
		return nil, err
	}
	store, err := meta.OpenLocal(ctx, dir, meta.LocalOptions{Log: storage.Options{FS: r.fs}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close(context.WithoutCancel(ctx))) }()
	c := meta.NewCatalog(store)
	for _, t := range r.Tenants {
		if _, err := c.CreateTenant(ctx, t); err != nil {
			return nil, err
		}
	}
	for _, n := range r.Namespaces {
		if _, err := c.CreateNamespace(ctx, n); err != nil {
			return nil, err
		}
	}
	all := map[archive.LogName]uint64{}
	for _, s := range r.Streams {
		if _, err := c.CreateStream(ctx, s); err != nil {
			return nil, err
		}
		now, err := c.GetStream(ctx, s.FullName())
		if err != nil {
			return nil, err
		}
		all[archive.LogName{Kind: archive.KindStream, Tenant: s.Tenant, Namespace: s.Namespace, Name: s.Name}] = now.Incarnation
	}
	for _, k := range r.Caches {
		if _, err := c.CreateCache(ctx, k); err != nil {
			return nil, err
		}
		now, err := c.GetCache(ctx, k.FullName())
		if err != nil {
			return nil, err
		}
		all[archive.LogName{Kind: archive.KindCache, Tenant: k.Tenant, Namespace: k.Namespace, Name: k.Name}] = now.Incarnation
	}
	return all, nil
}

// restoreChunk is how many bytes are written at once.
const restoreChunk = 1 << 20

// file writes a new file and flushes it; its name is flushed with its directory.
func (r *restore) file(ctx context.Context, path string, from io.Reader) (err error) {
	f, err := r.fs.OpenFile(path, vfs.CreateNew)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := make([]byte, restoreChunk)
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, readErr := io.ReadFull(from, buf)
		if n > 0 {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return err
			}
			at += int64(n)
			r.progress(int64(n))
		}
		switch {
		case errors.Is(readErr, io.EOF), errors.Is(readErr, io.ErrUnexpectedEOF):
			return f.Sync()
		case readErr != nil:
			return readErr
		}
	}
}

// dirs makes directories below a root and remembers them, to flush each once.
type dirs struct {
	fs   vfs.FS
	root string
	all  map[string]bool
}

func newDirs(fsys vfs.FS, root string) *dirs {
	return &dirs{fs: fsys, root: root, all: map[string]bool{root: true}}
}

func (d *dirs) add(dir string) error {
	if d.all[dir] {
		return nil
	}
	if err := d.fs.MkdirAll(dir); err != nil {
		return err
	}
	for at := dir; !d.all[at]; at = filepath.Dir(at) {
		d.all[at] = true
	}
	return nil
}

// sync flushes them, what is deeper first.
func (d *dirs) sync() error {
	var all []string
	for dir := range d.all {
		all = append(all, dir)
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	for _, dir := range all {
		if err := d.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// ensureKeys makes a signing key for each tenant that has none: without one nobody could
// say who they are there.
func ensureKeys(dir string, tenants []meta.Tenant) error {
	keys, err := auth.OpenKeys(dir)
	if err != nil {
		return fmt.Errorf("signing keys: %w", err)
	}
	for _, t := range tenants {
		if _, err := keys.Ensure(t.ID); err != nil {
			return fmt.Errorf("signing key of %s: %w", t.ID, err)
		}
	}
	return nil
}
