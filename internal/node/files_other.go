//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly

package node

// mostOpenFiles is 0: there is no limit that can be asked for.
func mostOpenFiles() uint64 { return 0 }
