package meta

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of a Store.
var (
	// ErrNotFound: the key is absent.
	ErrNotFound = errors.New("meta: not found")
	// ErrConflict: a compare of a transaction did not hold; nothing was written. The
	// error is a *ConflictError naming the key.
	ErrConflict = errors.New("meta: version conflict")
	// ErrUnavailable: the store could not be asked; nothing was written.
	ErrUnavailable = errors.New("meta: store unavailable")
	// ErrUnknownOutcome: the transaction was handed over and its answer is missing; it
	// may have been applied. Read the keys to learn which.
	ErrUnknownOutcome = errors.New("meta: outcome unknown")
	// ErrCompacted: the history a watch asked for is gone, or the store was restored to
	// a version before it. List again and watch from there.
	ErrCompacted = errors.New("meta: history no longer available")
	// ErrLeaseExpired: the lease is gone, with the keys that hung on it.
	ErrLeaseExpired = errors.New("meta: lease expired")
	// ErrClosed: the store or the watcher was closed.
	ErrClosed = errors.New("meta: closed")
	// ErrTooLarge: a key, a value or a transaction is over its limit.
	ErrTooLarge = errors.New("meta: too large")
)

// Limits every Store holds, so that all behave alike.
const (
	// MaxKeyBytes bounds a key.
	MaxKeyBytes = 1024
	// MaxValueBytes bounds one value.
	MaxValueBytes = 256 << 10
	// MaxTxnItems bounds compares and operations of one transaction, each. CreateAll needs
	// 257; etcd allows as many when it runs with --max-txn-ops, whose default is 128.
	MaxTxnItems = 512
)

// Version orders all writes of a store. Zero is "absent" in a Compare and "the
// beginning" in a Watch. Versions of one history only rise; a restore from a backup
// takes them back.
type Version uint64

// LeaseID names a lease. Zero is none.
type LeaseID uint64

// Entry is one key as read.
type Entry struct {
	Key     string
	Value   []byte
	Version Version // of the transaction that last wrote the key
	Lease   LeaseID // the key goes when this lease does
}

// Compare is a condition of a transaction: Key was last written at Version, or is
// absent when Version is zero.
type Compare struct {
	Key     string
	Version Version
}

// Op is one write of a transaction.
type Op struct {
	Delete bool
	Key    string
	Value  []byte
	Lease  LeaseID // zero: the key stays until it is deleted
}

// Put is the Op that writes value under key.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// PutLeased is the Op that writes value under key for as long as lease lives.
func PutLeased(key string, value []byte, lease LeaseID) Op {
	return Op{Key: key, Value: value, Lease: lease}
}

// Delete is the Op that removes key; removing an absent key is no error.
func Delete(key string) Op { return Op{Delete: true, Key: key} }

// Page is one answer of List.
type Page struct {
	Entries []Entry // ascending by key
	Version Version // of the store as read: watching after it misses nothing
	More    bool    // the limit cut the page
}

// Event is one change a watcher sees.
type Event struct {
	Deleted bool
	Key     string
	Value   []byte
	Version Version
}

// Watcher hands out the changes below a prefix. One reader at a time.
type Watcher interface {
	// Next waits for changes and returns all of one version, in the order of the
	// transaction. ErrCompacted and ErrClosed end the watcher; ErrUnavailable does not:
	// asking again goes on where it stopped.
	Next(ctx context.Context) ([]Event, error)
	// Close releases the watcher; a waiting Next returns ErrClosed.
	Close()
}

// Store is the metadata seam. Methods may be called from several goroutines. A
// context ends the waiting, not the write: a Txn given up on returns an error that is
// ErrUnknownOutcome as well as ctx.Err().
type Store interface {
	// Get reads one key. ErrNotFound when it is absent.
	Get(ctx context.Context, key string) (Entry, error)
	// List reads the keys with prefix that are greater than after, ascending, at most
	// limit (zero: all), as of one version.
	List(ctx context.Context, prefix, after string, limit int) (Page, error)
	// Txn applies ops in order as one version if every compare holds. No key may be
	// written twice. ErrConflict, ErrUnavailable and ErrTooLarge mean nothing was
	// written; ErrLeaseExpired that an op names a lease that is gone, and nothing was
	// written.
	Txn(ctx context.Context, compares []Compare, ops []Op) (Version, error)
	// Grant makes a lease of ttl.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// KeepAlive renews a lease to its full ttl, counted from when the store handles it.
	KeepAlive(ctx context.Context, lease LeaseID) (time.Duration, error)
	// Revoke ends a lease and deletes its keys. A lease that is gone is no error.
	Revoke(ctx context.Context, lease LeaseID) error
	// Watch hands out every change below prefix with a version above after. It reports
	// ErrCompacted if those changes are not all known any more, or if after is ahead of
	// the store (a restore took it back).
	Watch(ctx context.Context, prefix string, after Version) (Watcher, error)
}

// ConflictError says which compare failed.
type ConflictError struct {
	Key  string
	Want Version
	Have Version // zero: absent
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("meta: key %q is at version %d, not %d", e.Key, e.Have, e.Want)
}

// Is makes a ConflictError an ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// CheckTxn refuses a transaction no store takes. Stores call it first.
func CheckTxn(compares []Compare, ops []Op) error {
	if len(compares) > MaxTxnItems || len(ops) > MaxTxnItems {
		return fmt.Errorf("transaction of %d compares and %d writes, at most %d each: %w", len(compares), len(ops), MaxTxnItems, ErrTooLarge)
	}
	for i := range compares {
		if err := checkKey(compares[i].Key); err != nil {
			return err
		}
	}
	for i := range ops {
		if err := checkKey(ops[i].Key); err != nil {
			return err
		}
		if len(ops[i].Value) > MaxValueBytes {
			return fmt.Errorf("value of key %q has %d bytes, at most %d: %w", ops[i].Key, len(ops[i].Value), MaxValueBytes, ErrTooLarge)
		}
		for j := range i {
			if ops[j].Key == ops[i].Key {
				return &InvalidError{Object: "transaction", Field: "ops", Detail: fmt.Sprintf("key %q is written twice", ops[i].Key)}
			}
		}
	}
	return nil
}

func checkKey(key string) error {
	if key == "" {
		return &InvalidError{Object: "transaction", Field: "key", Detail: "is empty"}
	}
	if len(key) > MaxKeyBytes {
		return fmt.Errorf("key of %d bytes, at most %d: %w", len(key), MaxKeyBytes, ErrTooLarge)
	}
	return nil
}
