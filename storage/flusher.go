package storage

import "github.com/felixlog/felix/storage/vfs"

// flusher puts a file's data on the device.
type flusher interface {
	datasync(f vfs.File) error
}

// blockingFlusher holds the calling goroutine's thread for as long as the device takes.
type blockingFlusher struct{}

func (blockingFlusher) datasync(f vfs.File) error { return f.Datasync() }

// newFlusher gives the process's io_uring where it is wanted and the system lets us have
// one, else blocking flushes and why: durability does not depend on an optimisation.
func newFlusher(ioUring bool) (flusher, error) {
	if !ioUring {
		return blockingFlusher{}, nil
	}
	r, err := processRing()
	if err != nil {
		return blockingFlusher{}, err
	}
	return r, nil
}

// IOUringAvailable says whether flushes can go through io_uring here, and if not why.
func IOUringAvailable() error {
	_, err := processRing()
	return err
}
