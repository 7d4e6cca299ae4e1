//go:build !unix

package server

import "errors"

// readSocket reads nothing: what has arrived is met by the next read that waits.
func readSocket(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
