package sim

import (
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

type (
	offset     = storage.Offset
	generation = storage.Generation
)

// logPort is what the simulator needs of a log. Work is queued by submit and done by
// step, one unit a call: a group written, a flush, an answer. Hooks are called from step.
type logPort interface {
	head() offset
	next() offset // one past the last written
	// submit queues a batch. Batches are written in order.
	submit(*batch)
	// step does one unit of work; false when there is none.
	step() bool
	// pending says that step has something to do.
	pending() bool
	// sweep is the periodic flush.
	sweep()
	place(at offset) (replica.Place, error)
	encoded(from offset, max int) ([]byte, offset, error)
	// records visits the records of [from, to).
	records(from, to offset, visit func(*storage.Record)) error
	cut(to offset, keepCopy bool) (replica.Place, error)
	rebase(base offset) error
	flush() error
	trim(to offset)
	generations() []storage.GenerationStart
	// lostRecords is how many records were copied to lost/ since the disk is there.
	lostRecords() int
	close()
}

// batch is one unit of appending: payloads to be encoded, or encoded records that
// follow prev.
type batch struct {
	payloads [][]byte
	kind     storage.Kind
	encoded  []byte
	prev     replica.Place
	// admit is asked as the batch is about to get next; false refuses it.
	admit func(next offset) bool
	// done is told the first offset, or the error that kept the batch out for certain.
	done func(first offset, err error)
}

// hooks are where a log reports.
type hooks struct {
	written func(first, next offset, encoded []byte)
	stable  func(next offset)
	failed  func(reason string)
	// reverted says that admitted batches were taken back.
	reverted func()
}
