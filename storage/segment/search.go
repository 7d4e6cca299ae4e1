package segment

import (
	"context"
	"encoding/binary"
	"io"
)

// Found is a record that [Search] found.
type Found struct {
	Position int64
	Offset   Offset
}

// Search finds the first byte at or after from, in a segment of size bytes, at which a record
// begins that is whole and passes both of its checksums, and whose offset fits says could be
// there; nil takes any. It is for people who want what is left behind damage: nothing that
// opens a log may believe it, for the payload of a record can hold the bytes of another.
func Search(ctx context.Context, r io.ReaderAt, size, from int64, fits func(Found) bool) (found Found, ok bool, err error) {
	buf := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(buf)
	for ; from+RecordHeaderSize <= size; from += int64(len(*buf) - RecordHeaderSize + 1) {
		if err := ctx.Err(); err != nil {
			return Found{}, false, err
		}
		window := (*buf)[:min(int64(len(*buf)), size-from)]
		if _, err := readFull(r, window, from); err != nil {
			return Found{}, false, err
		}
		for i := 0; i+RecordHeaderSize <= len(window); i++ {
			head := window[i : i+RecordHeaderSize]
			if header, _ := headerSums((*[20]byte)(head)); header != binary.BigEndian.Uint32(head[20:]) {
				continue // before anything that would say why
			}
			at := Found{from + int64(i), Offset(binary.BigEndian.Uint64(head[4:]))}
			h, c := decodeHead(head, at.Offset, MaxVersion)
			if c != nil || int64(h.size) > size-at.Position || fits != nil && !fits(at) {
				continue
			}
			whole := make([]byte, h.size)
			if _, err := readFull(r, whole, at.Position); err != nil {
				return Found{}, false, err
			}
			var rec Record
			if rec.decodeVerified(whole, h, at.Offset) == nil {
				return at, true, nil
			}
		}
	}
	return Found{}, false, nil
}
