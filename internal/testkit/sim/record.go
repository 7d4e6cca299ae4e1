package sim

import (
	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

func decodeRecord(encoded string, at offset) (storage.Record, error) {
	r, _, err := segment.DecodeRecord([]byte(encoded), at)
	return r, err
}
