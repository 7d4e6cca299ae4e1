//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package vfs

import "os"

func lockFile(*os.File) error { return ErrUnsupported }
