package storage

import "github.com/felixlog/felix/storage/vfs"

// flusher puts a file's data on the device.
type flusher interface {
	datasync(f vfs.File) error
	close()
}

// blockingFlusher holds the calling goroutine's thread for as long as the device takes.
type blockingFlusher struct{}

func (blockingFlusher) datasync(f vfs.File) error { return f.Datasync() }
func (blockingFlusher) close()                    {}

func newFlusher(bool) flusher { return blockingFlusher{} }
