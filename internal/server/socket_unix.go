//go:build unix

package server

import "golang.org/x/sys/unix"

// readSocket reads what a socket that does not block has at hand.
func readSocket(fd uintptr, into []byte) (int, error) { return unix.Read(int(fd), into) }
