package storage

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/storage/segment"
)

// maxSideFile bounds a side file in bytes.
const maxSideFile = 1 << 30

func sideName(name string) error {
	switch class, _ := segment.ParseName(name); class {
	case segment.NameReplica, segment.NameProducers, segment.NameSnapshot:
		return nil
	}
	return fmt.Errorf("storage: %q is no side file of a log's owner: %w", name, fs.ErrInvalid)
}

// ReadSide reads a small file that the log's owner keeps beside it: segment.ReplicaName,
// segment.ProducersName or a snapshot. A missing one is fs.ErrNotExist.
func (l *Log) ReadSide(name string) ([]byte, error) {
	if err := sideName(name); err != nil {
		return nil, err
	}
	return segment.ReadFile(l.fs, l.dir, name, maxSideFile)
}

// WriteSide replaces such a file, so that after a crash it is the old or the new one;
// when it returns the new one is on the device.
func (l *Log) WriteSide(ctx context.Context, name string, data []byte) error {
	if err := sideName(name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return segment.WriteFile(l.fs, l.dir, name, data)
}

// RemoveSide removes such a file; a missing one is no error.
func (l *Log) RemoveSide(ctx context.Context, name string) error {
	if err := sideName(name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := l.fs.Stat(filepath.Join(l.dir, name)); err != nil {
		return nil //nolint:nilerr // it is not there
	}
	if err := l.fs.Remove(filepath.Join(l.dir, name)); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}
