package node

import (
	"context"
	"path/filepath"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage"
)

// store is the metadata with the way to close it.
type store interface {
	meta.Store
	Close(context.Context) error
}

type memoryStore struct{ *meta.Memory }

func (m memoryStore) Close(context.Context) error {
	m.Memory.Close()
	return nil
}

// openStore opens where the metadata lives: in a log of the data directory, or in memory
// where the streams are.
func openStore(ctx context.Context, n *Node) (store, error) {
	if n.plan.root == "" {
		return memoryStore{meta.NewMemory(meta.MemoryOptions{})}, nil
	}
	dir := filepath.Join(n.data.Root, metaDir)
	if err := mkdirDurable(n.o.FS, dir); err != nil {
		return nil, &DirError{Dir: dir, Err: cause(err), Hint: hint(err)}
	}
	l, err := meta.OpenLocal(ctx, dir, meta.LocalOptions{
		Log: storage.Options{FS: n.o.FS, Restarted: n.data.Restarted, RefuseGone: true, Events: n.metrics.StorageEvents(n.log)},
	})
	if err != nil {
		// Not l: a nil *Local in a store is a store that is not nil, and would be closed.
		return nil, err
	}
	return l, nil
}
