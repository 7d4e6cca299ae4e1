package wire

import (
	"errors"
	"io"
	"os"
)

// Frame is one frame as read. Payload is good until the next call of the
// Reader's Next, or until Release after Retain.
type Frame struct {
	Flags   Flags
	Payload []byte
	chunk   *chunk
}

// Retain keeps the payload past the next read, until Release. Each Retain needs
// one Release. It is called where Next was, before the next Next.
func (f Frame) Retain() { f.chunk.refs.Add(1) }

// Release ends one Retain. It may be called from any goroutine.
func (f Frame) Release() { f.chunk.release() }

// Reader splits a byte stream into frames. It reads as much as there is into
// memory from a pool that starts small, grows with the traffic up to 64 KiB and
// beyond that only with the bytes of a frame that have really arrived. It
// allocates nothing for a frame once its pools are warm. It is for one
// goroutine.
type Reader struct {
	src   io.Reader
	limit uint32
	cur   *chunk
	// r to w are the bytes read and not yet given out.
	r, w int
	// size is the size of the next chunk: doubled when a read fills what it was
	// given, halved when reads stay small.
	size  int
	small int
	err   error
}

// NewReader returns a reader of src that refuses payloads above limit bytes.
func NewReader(src io.Reader, limit uint32) *Reader {
	return &Reader{src: src, limit: limit, size: minChunk}
}

// SetLimit changes the limit from the next frame on.
func (r *Reader) SetLimit(limit uint32) { r.limit = limit }

// Limit returns the largest payload accepted.
func (r *Reader) Limit() uint32 { return r.limit }

// Next returns the next frame. Errors: io.EOF at the end of the stream between
// frames, io.ErrUnexpectedEOF inside one, the refusals of [ParseHeader], and
// what the source returns. An error is final, but for os.ErrDeadlineExceeded.
func (r *Reader) Next() (Frame, error) {
	if r.err != nil {
		return Frame{}, r.err
	}
	if err := r.fill(HeaderBytes); err != nil {
		return Frame{}, r.end(err)
	}
	h, err := ParseHeader(r.cur.buf[r.r:], r.limit)
	if err != nil {
		return Frame{}, r.end(err)
	}
	total := HeaderBytes + int(h.Length)
	if err := r.fill(total); err != nil {
		return Frame{}, r.end(err)
	}
	f := Frame{Flags: h.Flags, Payload: r.cur.buf[r.r+HeaderBytes : r.r+total : r.r+total], chunk: r.cur}
	r.r += total
	return f, nil
}

func (r *Reader) end(err error) error {
	if err == io.EOF && r.w > r.r {
		err = io.ErrUnexpectedEOF
	}
	// A read that was interrupted has lost nothing: the next one goes on.
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		r.err = err
	}
	return err
}

// Buffered reports whether Next will return without reading: a whole frame, or
// a header to refuse, has been read already.
func (r *Reader) Buffered() bool {
	if r.err != nil {
		return true
	}
	total, err := r.pending()
	return err != nil || r.w-r.r >= total
}

// pending is how many bytes the next frame needs, as far as that is known.
func (r *Reader) pending() (int, error) {
	if r.w-r.r < HeaderBytes {
		return HeaderBytes, nil
	}
	h, err := ParseHeader(r.cur.buf[r.r:], r.limit)
	return HeaderBytes + int(h.Length), err
}

// Gather is Buffered, but if a part of a frame of at most so many bytes is there, or is
// expected to be, it reads on first: with read, which gives what has arrived without
// waiting, for as long as it gives something.
func (r *Reader) Gather(most int, expected bool, read func([]byte) int) bool {
	for !r.Buffered() {
		total, err := r.pending()
		if err != nil || r.w == r.r && !expected || total > most {
			return false
		}
		r.makeRoom(total)
		space := r.cur.buf[r.w:]
		got := read(space)
		if got == 0 {
			return false
		}
		r.w += got
		r.adapt(got, len(space))
	}
	return true
}

// Close gives the memory back. Retained frames stay good. The reader must not
// be used afterwards.
func (r *Reader) Close() {
	if r.cur != nil {
		r.cur.release()
		r.cur = nil
	}
	r.r, r.w = 0, 0
	r.err = io.ErrClosedPipe
}

// fill reads until n bytes are there from r.r on.
func (r *Reader) fill(n int) error {
	for r.w-r.r < n {
		r.makeRoom(n)
		space := r.cur.buf[r.w:]
		got, err := r.src.Read(space)
		r.w += got
		r.adapt(got, len(space))
		if err != nil && r.w-r.r < n {
			return err
		}
		if got == 0 && err == nil {
			continue
		}
	}
	return nil
}

// makeRoom makes sure that the current chunk has room to read on towards a
// frame of n bytes at r.r.
func (r *Reader) makeRoom(n int) {
	have := r.w - r.r
	if r.cur == nil {
		r.cur = newChunk(r.size)
		return
	}
	// Room for what has arrived and as much again: a header alone must not
	// make us allocate what it promises.
	want := min(n, max(maxChunk, 2*have))
	wasteful := have == 0 && (len(r.cur.buf)-r.w < len(r.cur.buf)/4 || len(r.cur.buf) > 2*r.size)
	// A frame that begins the chunk fills it before it gets a larger one: growing with
	// each piece that arrives would copy a large frame over and over.
	if r.w < len(r.cur.buf) && !wasteful && (r.r == 0 || len(r.cur.buf)-r.r >= want) {
		return
	}
	want = max(want, r.size)
	if r.cur.refs.Load() == 1 && want <= len(r.cur.buf) && len(r.cur.buf) <= max(2*r.size, want) {
		copy(r.cur.buf, r.cur.buf[r.r:r.w])
		r.r, r.w = 0, have
		return
	}
	next := newChunk(want)
	copy(next.buf, r.cur.buf[r.r:r.w])
	r.cur.release()
	r.cur, r.r, r.w = next, 0, have
}

// adapt follows the traffic with the size of the chunks.
func (r *Reader) adapt(got, space int) {
	const patience = 16
	switch {
	case got == space && r.size < maxChunk:
		r.size *= 2
		r.small = 0
	case got < r.size/8 && r.size > minChunk:
		if r.small++; r.small == patience {
			r.size /= 2
			r.small = 0
		}
	default:
		r.small = 0
	}
}
