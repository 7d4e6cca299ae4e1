package disk

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/felixlog/felix/storage/vfs"
)

// Forever as a rule's Count hits every operation from the Nth on.
const Forever = -1

// Rule says which operations of a Faulty go wrong, and how.
type Rule struct {
	// Op is the kind of operation.
	Op Op
	// Path is a pattern of path.Match: without a slash for the last element of the
	// operation's path, with one for the whole. Empty fits every path. A rename
	// fits by either of its names.
	Path string
	// Nth is the first operation hit among those that fit, counted from 1 since the
	// rule was added; 0 is 1.
	Nth int
	// Count is how many in a row are hit; 0 is 1, Forever all.
	Count int
	// Action is what happens to them.
	Action Action
}

// Action is what a rule does to an operation. Make one with the functions below.
type Action struct {
	kind  actionKind
	err   error
	bytes int
	gate  *Gate
	delay time.Duration
	call  func()
}

type actionKind uint8

const (
	actFail actionKind = iota + 1
	actFailAfter
	actShort
	actLie
	actDrop
	actHold
	actDelay
	actCall
)

// Fail does nothing and returns err.
func Fail(err error) Action { return Action{kind: actFail, err: err} }

// FailAfter carries the operation out and returns err all the same.
func FailAfter(err error) Action { return Action{kind: actFailAfter, err: err} }

// Short writes the first n bytes of a write and returns err; any other operation
// fails as with Fail.
func Short(n int, err error) Action { return Action{kind: actShort, bytes: n, err: err} }

// NoSpace writes the first n bytes of a write and returns ENOSPC, as a file system
// does that runs full in the middle; any other operation fails with ENOSPC.
func NoSpace(n int) Action { return Short(n, syscall.ENOSPC) }

// Lie does nothing and returns success. A write says that all bytes are written.
func Lie() Action { return Action{kind: actLie} }

// FailAndDrop is a flush that fails with err and forgets what was dirty: over a
// Strict, those bytes will not reach the device by a later flush. Over other file
// systems, and for other operations, it is Fail.
func FailAndDrop(err error) Action { return Action{kind: actDrop, err: err} }

// Hold keeps the operation waiting at gate before it is carried out.
func Hold(gate *Gate) Action { return Action{kind: actHold, gate: gate} }

// Delay waits d before the operation is carried out: for bubbles of synctest,
// where time is free.
func Delay(d time.Duration) Action { return Action{kind: actDelay, delay: d} }

// Call runs fn before the operation is carried out.
func Call(fn func()) Action { return Action{kind: actCall, call: fn} }

// Added is a rule at work.
type Added struct {
	faulty *Faulty
	rule   Rule
	seen   int // under faulty.mu
	hits   int // under faulty.mu
	gone   bool
}

// Hits counts the operations the rule was applied to.
func (a *Added) Hits() int {
	a.faulty.mu.Lock()
	defer a.faulty.mu.Unlock()
	return a.hits
}

// Remove ends the rule.
func (a *Added) Remove() {
	a.faulty.mu.Lock()
	defer a.faulty.mu.Unlock()
	a.gone = true
}

// Faulty lays rules over a file system. Of the rules that hit an operation the one
// added first decides; rules with Hold, Delay or Call let the next one decide as
// well. Without rules it changes nothing.
type Faulty struct {
	inner vfs.FS
	mu    struct {
		sync.Mutex
		rules []*Added
	}
}

// NewFaulty returns inner with no rules yet.
func NewFaulty(inner vfs.FS) *Faulty { return &Faulty{inner: inner} }

// Add puts a rule to work. It panics on a pattern that path.Match refuses or a
// rule without action, which are errors in the test.
func (f *Faulty) Add(r Rule) *Added {
	if _, err := path.Match(r.Path, ""); err != nil {
		panic(fmt.Sprintf("disk: pattern %q: %v", r.Path, err))
	}
	if r.Action.kind == 0 {
		panic("disk: rule without action")
	}
	r.Nth = max(r.Nth, 1)
	if r.Count == 0 {
		r.Count = 1
	}
	a := &Added{faulty: f, rule: r}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rules = append(f.mu.rules, a)
	return a
}

// Clear ends all rules.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.mu.rules {
		a.gone = true
	}
	f.mu.rules = nil
}

// hit returns the actions for one operation, in order.
func (f *Faulty) hit(op Op, names ...string) []Action {
	f.mu.Lock()
	defer f.mu.Unlock()
	var actions []Action
	for _, a := range f.mu.rules {
		fits := false
		for _, name := range names {
			fits = fits || matchPath(a.rule.Path, name)
		}
		if a.gone || !fits || !a.rule.Op.covers(op) {
			continue
		}
		a.seen++
		if a.seen < a.rule.Nth || a.rule.Count != Forever && a.seen >= a.rule.Nth+a.rule.Count {
			continue
		}
		a.hits++
		actions = append(actions, a.rule.Action)
		if k := a.rule.Action.kind; k != actHold && k != actDelay && k != actCall {
			break
		}
	}
	return actions
}

// run does one operation under the rules; a decides about writes and flushes.
func (f *Faulty) run(op Op, do func() error, special func(a Action) (error, bool), names ...string) error {
	for _, a := range f.hit(op, names...) {
		switch a.kind {
		case actHold:
			a.gate.wait()
			continue
		case actDelay:
			<-time.NewTimer(a.delay).C
			continue
		case actCall:
			a.call()
			continue
		}
		if special != nil {
			if err, done := special(a); done {
				return wrap(op, names[0], err)
			}
		}
		switch a.kind {
		case actLie:
			return nil
		case actFailAfter:
			// The caller sees only a.err, whatever became of the operation.
			return wrap(op, names[0], firstError(a.err, do()))
		}
		return wrap(op, names[0], a.err)
	}
	return do()
}

// firstError is err; the other is what err hides.
func firstError(err, _ error) error { return err }

func (f *Faulty) OpenFile(name string, flag vfs.Flag) (vfs.File, error) {
	op := OpOpen
	if flag == vfs.Create || flag == vfs.CreateNew {
		if _, err := f.inner.Stat(name); err != nil {
			op = OpCreate
		}
	}
	var file vfs.File
	err := f.run(op, func() (err error) {
		file, err = f.inner.OpenFile(name, flag)
		return err
	}, nil, name)
	if err != nil {
		if file != nil { // FailAfter: the file is there, the caller has no handle
			return nil, firstError(err, file.Close())
		}
		return nil, err
	}
	if file == nil {
		return nil, wrap(op, name, fs.ErrInvalid) // a lie about an open cannot be kept up
	}
	return &faultyFile{faulty: f, inner: file, name: name}, nil
}

func (f *Faulty) Remove(name string) error {
	return f.run(OpRemove, func() error { return f.inner.Remove(name) }, nil, name)
}

// RemoveAll is one operation of kind OpRemove.
func (f *Faulty) RemoveAll(name string) error {
	return f.run(OpRemove, func() error { return f.inner.RemoveAll(name) }, nil, name)
}

func (f *Faulty) Rename(oldName, newName string) error {
	return f.run(OpRename, func() error { return f.inner.Rename(oldName, newName) }, nil, oldName, newName)
}

// MkdirAll is one operation of kind OpMkdir, made or not.
func (f *Faulty) MkdirAll(dir string) error {
	return f.run(OpMkdir, func() error { return f.inner.MkdirAll(dir) }, nil, dir)
}

func (f *Faulty) ReadDir(dir string) (list []fs.DirEntry, err error) {
	err = f.run(OpReadDir, func() (err error) {
		list, err = f.inner.ReadDir(dir)
		return err
	}, nil, dir)
	return list, err
}

func (f *Faulty) Stat(name string) (info fs.FileInfo, err error) {
	err = f.run(OpStat, func() (err error) {
		info, err = f.inner.Stat(name)
		return err
	}, nil, name)
	if err == nil && info == nil {
		return nil, wrap(OpStat, name, fs.ErrInvalid)
	}
	return info, err
}

func (f *Faulty) SyncDir(dir string) error {
	return f.run(OpSyncDir, func() error { return f.inner.SyncDir(dir) }, nil, dir)
}

func (f *Faulty) Lock(name string) (lock io.Closer, err error) {
	err = f.run(OpLock, func() (err error) {
		lock, err = f.inner.Lock(name)
		return err
	}, nil, name)
	if err == nil && lock == nil {
		return nil, wrap(OpLock, name, fs.ErrInvalid)
	}
	return lock, err
}

func (f *Faulty) Usage(dir string) (u vfs.Usage, err error) {
	err = f.run(OpUsage, func() (err error) {
		u, err = f.inner.Usage(dir)
		return err
	}, nil, dir)
	return u, err
}

// faultyFile is an open file of a Faulty.
type faultyFile struct {
	faulty *Faulty
	inner  vfs.File
	name   string
}

func (f *faultyFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.faulty.run(OpRead, func() (err error) {
		n, err = f.inner.ReadAt(p, off)
		return err
	}, nil, f.name)
	return n, err
}

func (f *faultyFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.faulty.run(OpWrite, func() (err error) {
		n, err = f.inner.WriteAt(p, off)
		return err
	}, func(a Action) (error, bool) {
		switch a.kind {
		case actLie:
			n = len(p)
			return nil, true
		case actShort:
			var inner error
			if n, inner = f.inner.WriteAt(p[:min(a.bytes, len(p))], off); inner != nil {
				return inner, true
			}
			return a.err, true
		}
		return nil, false
	}, f.name)
	return n, err
}

func (f *faultyFile) Close() error {
	return f.faulty.run(OpClose, f.inner.Close, nil, f.name)
}

func (f *faultyFile) Size() (n int64, err error) {
	err = f.faulty.run(OpSize, func() (err error) {
		n, err = f.inner.Size()
		return err
	}, nil, f.name)
	return n, err
}

func (f *faultyFile) Truncate(size int64) error {
	return f.faulty.run(OpTruncate, func() error { return f.inner.Truncate(size) }, nil, f.name)
}

func (f *faultyFile) Sync() error     { return f.flush(OpSync, f.inner.Sync) }
func (f *faultyFile) Datasync() error { return f.flush(OpDatasync, f.inner.Datasync) }

// flushFailer is a file whose flush can fail and drop.
type flushFailer interface {
	failFlush(op Op, err error) error
}

func (f *faultyFile) flush(op Op, do func() error) error {
	return f.faulty.run(op, do, func(a Action) (error, bool) {
		if a.kind != actDrop {
			return nil, false
		}
		return f.failFlush(op, a.err), true
	}, f.name)
}

func (f *faultyFile) failFlush(op Op, err error) error {
	if inner, ok := f.inner.(flushFailer); ok {
		return inner.failFlush(op, err)
	}
	return wrap(op, f.name, err)
}

func (f *faultyFile) Allocate(off, n int64, keepSize bool) error {
	return f.faulty.run(OpAllocate, func() error { return f.inner.Allocate(off, n, keepSize) }, nil, f.name)
}

func (f *faultyFile) StartWriteback(off, n int64) error {
	return f.faulty.run(OpWriteback, func() error { return f.inner.StartWriteback(off, n) }, nil, f.name)
}

// Fd hides the descriptor: a flush past this seam would not meet the rules.
func (f *faultyFile) Fd() uintptr { return ^uintptr(0) }

var _ vfs.FS = (*Faulty)(nil)
