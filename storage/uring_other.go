//go:build !linux

package storage

import (
	"errors"
	"fmt"
)

func processRing() (flusher, error) {
	return nil, fmt.Errorf("storage: io_uring: %w", errors.ErrUnsupported)
}
