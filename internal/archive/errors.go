package archive

import (
	"errors"
	"fmt"
)

// Reasons of a RefusedError.
var (
	// ErrNotBackup: the file is something else.
	ErrNotBackup = errors.New("not a backup of Felix")
	// ErrVersion: another release wrote it.
	ErrVersion = errors.New("backup of an unknown version")
	// ErrIncomplete: it was cut off.
	ErrIncomplete = errors.New("incomplete backup")
	// ErrDamaged: it does not hold what it says, or what a backup may.
	ErrDamaged = errors.New("damaged backup")
)

// advice is what to do, by reason.
var advice = map[error]string{
	ErrNotBackup:  "name a file that `felix backup` wrote",
	ErrVersion:    "use the release that wrote it",
	ErrIncomplete: "use another backup: this one ended before its manifest",
	ErrDamaged:    "use another copy of it, or another backup",
}

// RefusedError says why a backup is not used: what, where, and what to do.
type RefusedError struct {
	Reason   error  // one of the Err... values
	Entry    string // of the tar file; empty when it is the file as a whole
	Position int64  // byte of the file
	Detail   string
}

func (e *RefusedError) Error() string {
	s := e.Reason.Error()
	if e.Entry != "" {
		name := e.Entry
		if len(name) > 200 {
			name = name[:200] + "..."
		}
		s += fmt.Sprintf(": entry %q", name)
	}
	s += fmt.Sprintf(" at byte %d %s", e.Position, e.Detail)
	return s + "; " + advice[e.Reason]
}

// Unwrap gives the reason.
func (e *RefusedError) Unwrap() error { return e.Reason }

// refused and damaged make errors whose place is added where it is known.
func refused(reason error, format string, args ...any) *RefusedError {
	return &RefusedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

func damaged(format string, args ...any) *RefusedError { return refused(ErrDamaged, format, args...) }

// at says where in the file err was found, if it does not say so itself.
func at(err error, entry string, position int64) error {
	var r *RefusedError
	if errors.As(err, &r) && r.Entry == "" {
		r.Entry, r.Position = entry, position
	}
	return err
}
