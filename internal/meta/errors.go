package meta

import "fmt"

// InvalidError is a definition that is refused, and why.
type InvalidError struct {
	Object string // "stream t/ns/orders"
	Field  string
	Detail string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s %s", e.Object, e.Field, e.Detail)
}

// ExistsError: an object of that name exists with other settings.
type ExistsError struct {
	Object string
	Field  string // the first setting that differs
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s exists with another %s", e.Object, e.Field)
}

// NotFoundError: the object, or the parent it should be made in, does not exist.
type NotFoundError struct{ Object string }

func (e *NotFoundError) Error() string { return e.Object + " does not exist" }

// Is makes a NotFoundError an ErrNotFound.
func (e *NotFoundError) Is(target error) bool { return target == ErrNotFound }

// FixedError: the setting cannot change once the object exists.
type FixedError struct {
	Object string
	Field  string
}

func (e *FixedError) Error() string {
	return fmt.Sprintf("%s: %s cannot change", e.Object, e.Field)
}

// ItemError is an error about one of several definitions.
type ItemError struct {
	Index int // in the order given
	Err   error
}

func (e *ItemError) Error() string { return fmt.Sprintf("item %d: %v", e.Index, e.Err) }

// Unwrap is the error without the index.
func (e *ItemError) Unwrap() error { return e.Err }
