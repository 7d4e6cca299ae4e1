package partition

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
)

// A publish that a lack of room or of descriptors has refused is counted as such; one that
// met a log which it has poisoned has failed, and what may be written is unknown.
func TestResultsOfWhatWasNotWritten(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Result
	}{
		{nil, ResultOK},
		{&storage.DiskFullError{Dir: "d", Free: 1, Reserve: 2}, ResultOverloaded},
		{fmt.Errorf("%w: %w", storage.ErrNotWritten, &storage.DiskFullError{Dir: "d", Cause: syscall.ENOSPC}), ResultOverloaded},
		{fmt.Errorf("%w: %w", storage.ErrNotWritten, syscall.EMFILE), ResultOverloaded},
		{fmt.Errorf("%w: %w", storage.ErrNotWritten, syscall.EIO), ResultFailed},
		{&storage.PoisonedError{Op: "flush", Cause: syscall.ENOSPC}, ResultFailed},
		{&storage.PoisonedError{Op: "cut", Cause: errors.Join(syscall.EIO, syscall.EMFILE)}, ResultFailed},
		{fmt.Errorf("%w: %w", storage.ErrUnknownOutcome, syscall.ENOSPC), ResultUnknown},
	} {
		require.Equal(t, c.want, resultOf(&Publish{Err: c.err}), "%v", c.err)
	}
}
