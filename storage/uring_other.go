//go:build !linux

package storage

import (
	"errors"
	"fmt"
)

func processRing() flusher { return nil }

func ringError() error { return fmt.Errorf("storage: io_uring: %w", errors.ErrUnsupported) }
