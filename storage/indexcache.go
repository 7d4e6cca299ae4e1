package storage

import (
	"container/list"
	"sync"

	"github.com/felixlog/felix/storage/segment"
)

// indexCache keeps the indexes of sealed segments that were used last, up to a bound in
// bytes. Those of active segments are not in it.
type indexCache struct {
	limit int64

	mu    sync.Mutex
	bytes int64
	order list.List // of *cachedIndex, most recently used first
	by    map[*segmentFile]*list.Element
}

type cachedIndex struct {
	s       *segmentFile
	entries []segment.IndexEntry
}

const indexEntryMemory = 16

func (c *indexCache) get(s *segmentFile) ([]segment.IndexEntry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.by[s]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedIndex).entries, true
}

func (c *indexCache) put(s *segmentFile, x *segment.Index) {
	if x == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = make(map[*segmentFile]*list.Element)
	}
	if _, ok := c.by[s]; ok {
		return
	}
	entries := x.Entries()
	c.by[s] = c.order.PushFront(&cachedIndex{s, entries})
	c.bytes += int64(len(entries)) * indexEntryMemory
	for c.bytes > c.limit && c.order.Len() > 1 {
		c.remove(c.order.Back())
	}
}

func (c *indexCache) drop(s *segmentFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.by[s]; ok {
		c.remove(e)
	}
}

func (c *indexCache) remove(e *list.Element) {
	ci := c.order.Remove(e).(*cachedIndex)
	c.bytes -= int64(len(ci.entries)) * indexEntryMemory
	delete(c.by, ci.s)
}
