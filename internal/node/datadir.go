package node

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/felixlog/felix/internal/dirlock"
	"github.com/felixlog/felix/storage/vfs"
)

// Names in the data directory.
const (
	lockName = dirlock.Name
	nodeName = "node.json"
	tlsDir   = "tls"
	keysDir  = "keys"
	metaDir  = "meta"
	logsDir  = "streams"
	resetKey = "quic-reset.key"
)

// dataFormat is the newest layout of the data directory this program reads, and
// the one it writes.
const dataFormat = 1

// maxNodeFile bounds what is read as node.json.
const maxNodeFile = 64 << 10

var ownNames = map[string]bool{lockName: true, nodeName: true, nodeName + ".tmp": true, tlsDir: true, keysDir: true, metaDir: true, logsDir: true, resetKey: true}

// DirError says why a data directory cannot be used. Err is one of the Err...
// values below or what the system answered.
type DirError struct {
	Dir  string
	Path string // the file that was in the way, if it is not the directory itself
	Hint string // what to do
	Err  error
}

func (e *DirError) Error() string {
	s := "data directory " + e.Dir
	if e.Path != "" {
		s += ": " + e.Path
	}
	s += ": " + e.Err.Error()
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

func (e *DirError) Unwrap() error { return e.Err }

// Reasons of a DirError.
var (
	ErrInUse   = errors.New("in use by another process")
	ErrNewer   = errors.New("written by a newer version")
	ErrForeign = errors.New("holds files that are not Felix's")
	ErrNotDir  = errors.New("is not a directory")
	ErrDamaged = errors.New("cannot be read")
	ErrMissing = errors.New("is missing or empty, and shards have been there")
	ErrNoMeta  = errors.New("is missing or empty, and there are shards that it should know")
)

// nodeFile is node.json.
type nodeFile struct {
	Format int    `json:"format"`
	DiskID string `json:"disk_id"` // random, 16 hex digits, made with the directory
	BootID string `json:"boot_id"` // the machine's boot during which every log was last recovered
	Clean  bool   `json:"clean"`   // the last stop was a graceful one
	Placed bool   `json:"placed"`  // shards have been there: the storage directory is never empty again
}

// DataDir is the opened, locked data directory of one process.
type DataDir struct {
	Root      string
	DiskID    string
	Fresh     bool     // made by this start
	Restarted bool     // the machine was restarted since the logs were last recovered
	Clean     bool     // the last stop was a graceful one
	Stray     []string // names that are not Felix's; left alone
	Rebuilt   bool     // node.json was missing or empty beside data of ours, and was made anew

	fs     vfs.FS
	lock   io.Closer
	boot   string
	shards string    // the storage directory, if there is one
	held   io.Closer // the lock of the storage directory, once it is taken

	mu     sync.Mutex // over what follows, once the directory is open
	stored nodeFile
	// unsaved is why node.json is not what stored says: the disk was full. It then has the
	// boot id before, as after a start that was cut short; that the last stop was a clean one
	// is wrong in it, and only said.
	unsaved error
}

// OpenDataDir makes or opens dir, locks it against other processes and marks it
// unclean. boot is the machine's boot id. Every refusal is a *DirError and leaves
// the directory as it was.
func OpenDataDir(fsys vfs.FS, dir, boot string) (_ *DataDir, err error) {
	d := &DataDir{Root: dir, fs: fsys, boot: boot}
	fail := func(path string, err error, hint string) (*DataDir, error) {
		return nil, &DirError{Dir: dir, Path: path, Err: err, Hint: hint}
	}
	switch info, err := fsys.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		if err := mkdirDurable(fsys, dir); err != nil {
			return fail("", cause(err), hint(err))
		}
	case err != nil:
		return fail("", cause(err), hint(err))
	case !info.IsDir():
		return fail("", ErrNotDir, "name a directory with --data")
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return fail("", cause(err), hint(err))
	}
	var ours, foreign bool
	hasNode := false
	for _, e := range entries {
		switch name := e.Name(); {
		case name == nodeName:
			hasNode = true
		case name == restoringName:
			return fail("", ErrRestoring, restoringHint)
		case name == lockName || name == nodeName+".tmp":
		case ownNames[name]:
			ours = true
		default:
			d.Stray = append(d.Stray, name)
			// Left by file managers and by mkfs in every mounted disk.
			foreign = foreign || !strings.HasPrefix(name, ".") && name != "lost+found"
		}
	}
	if foreign && !hasNode && !ours {
		return fail("", fmt.Errorf("%w (%s)", ErrForeign, d.Stray[0]), "choose an empty directory with --data")
	}

	d.lock, err = dirlock.Lock(fsys, dir)
	if errors.Is(err, vfs.ErrLocked) {
		return fail("", inUse(err), "stop it, or give this one a directory of its own with --data")
	}
	if err != nil {
		return fail(lockName, cause(err), hint(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.lock.Close())
		}
	}()

	raw, err := d.readAll(nodeName)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(raw) == 0:
		// The identity is lost, the logs are not: they say themselves what they hold.
		d.Fresh = !ours && !hasNode
		d.Rebuilt = !d.Fresh
		d.stored = nodeFile{Format: dataFormat, DiskID: randomID(), BootID: boot}
		// Whether the machine was restarted since is lost too; taking it for not restarted
		// is the side that refuses damage instead of cutting it.
	case err != nil:
		return fail(nodeName, cause(err), hint(err))
	default:
		if err := json.Unmarshal(raw, &d.stored); err != nil || d.stored.Format < 1 || d.stored.DiskID == "" {
			return fail(nodeName, ErrDamaged, "restore it, or empty it to have it made anew")
		}
		if d.stored.Format > dataFormat {
			return fail(nodeName, fmt.Errorf("%w (format %d, this one reads up to %d)", ErrNewer, d.stored.Format, dataFormat), "use that version")
		}
	}
	d.DiskID = d.stored.DiskID
	d.Clean = d.stored.Clean
	d.Restarted = d.stored.BootID != boot
	d.stored.Clean = false
	if err := d.store(); err != nil {
		// What is new is on no device then, and has no identity to go on with.
		if !vfs.OutOfSpace(err) || d.Fresh || d.Rebuilt {
			return fail(nodeName, cause(err), hint(err))
		}
		d.unsaved = err
	}
	if err := note(fsys, dir); err != nil {
		return fail(lockName, cause(err), hint(err))
	}
	return d, nil
}

// note writes into the lock of dir who has it, which is for people: on a full disk it says
// nothing, and holds all the same.
func note(fsys vfs.FS, dir string) error {
	if err := dirlock.Note(fsys, dir); err != nil && !vfs.OutOfSpace(err) {
		return err
	}
	return nil
}

// mkdirDurable makes dir and its missing parents, each entry flushed.
func mkdirDurable(fsys vfs.FS, dir string) error {
	var flush []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := fsys.Stat(at); err == nil || filepath.Dir(at) == at {
			break
		}
		flush = append(flush, filepath.Dir(at))
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	for _, parent := range flush {
		if err := fsys.SyncDir(parent); err != nil {
			return err
		}
	}
	return nil
}

// Path joins names below the directory.
func (d *DataDir) Path(name ...string) string {
	return filepath.Join(append([]string{d.Root}, name...)...)
}

// Recovered records that every log has been recovered in this boot of the machine:
// until then a further start judges damage as this one did. It also records whether
// shards are there.
func (d *DataDir) Recovered() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	placed, err := d.placed()
	if err != nil {
		return err
	}
	if d.stored.BootID == d.boot && d.stored.Placed == placed {
		return nil
	}
	d.stored.BootID, d.stored.Placed = d.boot, placed
	d.unsaved = d.store()
	return d.unsaved
}

// Save writes node.json if that is still to be done, and says whether it did.
func (d *DataDir) Save() (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unsaved == nil {
		return false, nil
	}
	d.unsaved = d.store()
	return d.unsaved == nil, d.unsaved
}

// Unsaved is why node.json could not be written yet; nil if it is.
func (d *DataDir) Unsaved() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unsaved
}

// placed says whether shards are or were in the storage directory.
func (d *DataDir) placed() (bool, error) {
	if d.stored.Placed || d.shards == "" {
		return d.stored.Placed, nil
	}
	dirs, err := directories(d.fs, d.shards)
	return len(dirs) > 0, err
}

// checkPlaces refuses to start beside data that is somewhere else: a volume that is not
// mounted, a directory that was not restored. To start empty would say of everything
// acknowledged that it never was.
func (d *DataDir) checkPlaces(root string) error {
	d.shards = root
	failed := func(dir string, err error) error { return &DirError{Dir: dir, Err: cause(err), Hint: hint(err)} }
	dirs, err := directories(d.fs, root)
	if err != nil {
		return failed(root, err)
	}
	if d.stored.Placed && len(dirs) == 0 {
		return &DirError{Dir: root, Err: ErrMissing, Hint: "mount or restore it; to give up what it held, empty " + d.Path(nodeName)}
	}
	known, err := d.fs.ReadDir(d.Path(metaDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(d.Path(metaDir), err)
	}
	if len(known) > 0 {
		return nil
	}
	for _, name := range dirs {
		inside, err := d.fs.ReadDir(filepath.Join(root, name))
		if err != nil {
			return failed(filepath.Join(root, name), err)
		}
		if len(inside) > 0 {
			return &DirError{Dir: d.Root, Path: metaDir, Err: ErrNoMeta,
				Hint: "restore it: it says which streams and caches exist; to give up the shards, move " + root + " away"}
		}
	}
	return nil
}

// openShards takes the storage directory, which is made if there was none. It has a lock
// of its own: another broker's settings may name it too, and so may another path.
func (d *DataDir) openShards(root string) error {
	// Who has it is said first: whether what it holds is this broker's is then beside the point.
	if _, err := d.fs.Stat(filepath.Join(root, lockName)); err == nil {
		if err := d.lockShards(root); err != nil {
			return err
		}
	}
	if err := d.checkPlaces(root); err != nil {
		return err
	}
	if err := mkdirDurable(d.fs, root); err != nil {
		return &DirError{Dir: root, Err: cause(err), Hint: hint(err)}
	}
	if err := d.lockShards(root); err != nil {
		return err
	}
	// Only now: what is refused is left as it was.
	if err := note(d.fs, root); err != nil {
		return &DirError{Dir: root, Path: lockName, Err: cause(err), Hint: hint(err)}
	}
	return nil
}

func (d *DataDir) lockShards(root string) (err error) {
	if d.held != nil {
		return nil
	}
	d.held, err = dirlock.Lock(d.fs, root)
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return &DirError{Dir: root, Path: lockName, Err: inUse(err), Hint: "stop it, or give this one a storage directory of its own with --storage-dir"}
	case err != nil:
		return &DirError{Dir: root, Path: lockName, Err: cause(err), Hint: hint(err)}
	}
	return nil
}

// release lets go of both directories.
func (d *DataDir) release() (err error) {
	if d.held != nil {
		err = d.held.Close()
	}
	return errors.Join(err, d.lock.Close())
}

// directories are those in dir that Felix may have made; a dir that is missing has none.
func directories(fsys vfs.FS, dir string) (names []string, err error) {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != "lost+found" {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Close marks the directory clean if the stop was graceful and releases it.
func (d *DataDir) Close(graceful bool) error {
	if !graceful {
		return d.release()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	placed, err := d.placed()
	d.stored.Clean, d.stored.Placed = true, placed
	return errors.Join(err, d.store(), d.release())
}

// store replaces node.json whole: a temporary, flush, rename, flush of the directory.
func (d *DataDir) store() error {
	raw, err := json.MarshalIndent(d.stored, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(d.fs, d.Root, nodeName, append(raw, '\n'))
}

func writeFile(fsys vfs.FS, dir, name string, raw []byte) error {
	tmp := filepath.Join(dir, name+".tmp")
	f, err := fsys.OpenFile(tmp, vfs.Create)
	if err != nil {
		return err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(raw, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

func (d *DataDir) readAll(name string) ([]byte, error) {
	f, err := d.fs.OpenFile(d.Path(name), vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err == nil && size > maxNodeFile {
		err = ErrDamaged
	}
	var raw []byte
	if err == nil {
		raw = make([]byte, size)
		_, err = io.ReadFull(io.NewSectionReader(f, 0, size), raw)
	}
	return raw, errors.Join(err, f.Close())
}

// inUse is ErrInUse with the process that a refused lock names, if it names one.
func inUse(err error) error {
	var held *dirlock.HeldError
	if errors.As(err, &held) && held.Holder != 0 {
		return fmt.Errorf("%w %d", ErrInUse, held.Holder)
	}
	return ErrInUse
}

// cause strips the path from what the system answered: the DirError names it.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func hint(err error) string {
	switch {
	case errors.Is(err, syscall.EROFS):
		return "the file system is mounted read-only; mount it writable or choose another directory with --data"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("user %d needs read, write and search permission there", os.Getuid())
	case vfs.OutOfSpace(err):
		return "make room on the file system"
	}
	return ""
}

func randomID() string {
	var b [8]byte
	// crypto/rand.Read never returns an error.
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// machineBoot is the machine's boot id, or empty where the system has none; then
// no restart is ever noticed, which is the side that refuses rather than cuts.
func machineBoot() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
