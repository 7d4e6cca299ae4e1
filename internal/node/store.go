package node

import (
	"context"

	"github.com/felixlog/felix/internal/meta"
)

// store is the metadata with the way to close it.
type store interface {
	meta.Store
	close() error
}

type memoryStore struct{ *meta.Memory }

func (m memoryStore) close() error {
	m.Memory.Close()
	return nil
}

// openStore opens where the metadata lives: this line decides it.
func openStore(context.Context, *Node) (store, error) {
	return memoryStore{meta.NewMemory(meta.MemoryOptions{})}, nil
}
