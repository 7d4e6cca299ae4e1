package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
)

func header(magic uint32, version, flags uint16, length uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, flags)
	return binary.BigEndian.AppendUint32(b, length)
}

// A length of 0, 2^31-1 or 2^32-1 is refused on the header, whatever the limit
// before or after auth, and nothing is allocated for it.
func TestHeaderRefusals(t *testing.T) {
	for _, limit := range []uint32{PreAuthMaxFrame, DefaultMaxFrame} {
		for _, length := range []uint32{1<<31 - 1, 1<<32 - 1, limit + 1} {
			_, err := NewReader(bytes.NewReader(header(Magic, 1, 0, length)), limit).Next()
			var large *FrameTooLargeError
			require.ErrorAs(t, err, &large)
			require.Equal(t, FrameTooLargeError{Length: length, Max: limit}, *large)
		}
		_, err := NewReader(bytes.NewReader(header(Magic, 1, 0, 0)), limit).Next()
		require.ErrorIs(t, err, ErrEmptyFrame)
		_, err = NewReader(bytes.NewReader(header(Magic, 1, 0, limit)), limit).Next()
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	_, err := NewReader(bytes.NewReader(header(Magic+1, 1, 0, 1)), 10).Next()
	require.ErrorIs(t, err, ErrBadMagic)
	_, err = NewReader(bytes.NewReader(header(Magic, 2, 0, 1)), 10).Next()
	require.ErrorIs(t, err, ErrBadVersion)
}

// interrupted gives its pieces, and before each a read that a deadline ended.
type interrupted struct {
	rest    [][]byte
	stopped bool
}

func (i *interrupted) Read(p []byte) (int, error) {
	if i.stopped = !i.stopped; i.stopped {
		return 0, os.ErrDeadlineExceeded
	}
	if len(i.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, i.rest[0])
	i.rest = i.rest[1:]
	return n, nil
}

// A reader that a deadline interrupts, anywhere in a frame, goes on where it was.
func TestInterruptedReaderGoesOn(t *testing.T) {
	frame := append(header(Magic, 1, 0, 5), "hello"...)
	src := &interrupted{}
	for i := range frame {
		src.rest = append(src.rest, frame[i:i+1])
	}
	r := NewReader(src, 10)
	for range frame {
		_, err := r.Next()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	f, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "hello", string(f.Payload))
	_, err = r.Next()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	for range 2 {
		_, err = r.Next()
		require.ErrorIs(t, err, io.EOF)
	}
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f()
		}
	})
	return uint64(r.AllocedBytesPerOp())
}

// A header that promises 16 MiB makes the reader allocate what has arrived, not
// what was promised.
func TestHeaderAloneAllocatesLittle(t *testing.T) {
	promise := append(header(Magic, 1, 0, DefaultMaxFrame), make([]byte, 100<<10)...)
	got := allocated(func() {
		r := NewReader(bytes.NewReader(promise), DefaultMaxFrame)
		_, err := r.Next()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			panic(err)
		}
		r.Close()
	})
	require.Less(t, got, uint64(4*len(promise)))
}

func TestReaderEnds(t *testing.T) {
	whole := AppendMessage(nil, &PublishOK{RequestID: 1})
	for cut := range len(whole) {
		r := NewReader(bytes.NewReader(whole[:cut]), 1<<10)
		_, err := r.Next()
		if cut == 0 {
			require.Equal(t, io.EOF, err)
		} else {
			require.Equal(t, io.ErrUnexpectedEOF, err)
		}
		_, again := r.Next()
		require.Equal(t, err, again)
		require.True(t, r.Buffered())
		r.Close()
	}
	boom := errors.New("boom")
	r := NewReader(iotest.ErrReader(boom), 1<<10)
	_, err := r.Next()
	require.Equal(t, boom, err)
}

func TestBuffered(t *testing.T) {
	one := AppendMessage(nil, &PublishOK{RequestID: 1})
	three := append(append(append([]byte{}, one...), one...), one[:len(one)-1]...)
	r := NewReader(io.MultiReader(bytes.NewReader(three), bytes.NewReader(one[len(one)-1:])), 1<<10)
	require.False(t, r.Buffered())
	for range 2 {
		_, err := r.Next()
		require.NoError(t, err)
	}
	require.False(t, r.Buffered(), "the third frame lacks its last byte")
	_, err := r.Next()
	require.NoError(t, err)
	require.False(t, r.Buffered())
	r = NewReader(bytes.NewReader(append(append([]byte{}, one...), header(0, 1, 0, 1)...)), 1<<10)
	_, err = r.Next()
	require.NoError(t, err)
	require.True(t, r.Buffered(), "a header to refuse needs no more bytes")
}

// randomReader gives out what it has in pieces of random size.
type randomReader struct {
	b []byte
	r *rand.Rand
}

func (s *randomReader) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(s.b), 1+s.r.IntN(1<<s.r.IntN(18)))
	copy(p, s.b[:n])
	s.b = s.b[n:]
	return n, nil
}

// Gather reads on only behind a part of a frame, or where one is expected, and only for one
// that is small enough.
func TestGather(t *testing.T) {
	frame := FinishFrame(append(AppendHeader(nil, FlagBinaryPublishBatch, 0), "payload"...), 0)
	pieces := [][]byte{frame[2:3], frame[3 : HeaderBytes+1], nil, frame[HeaderBytes+1:]}
	asked := 0
	read := func(p []byte) int {
		asked++
		n := copy(p, pieces[0])
		pieces = pieces[1:]
		return n
	}
	r := NewReader(bytes.NewReader(append(bytes.Clone(frame), frame[:2]...)), 100)
	defer r.Close()
	require.False(t, r.Gather(1000, false, read))
	require.Zero(t, asked, "nothing says that more comes")
	_, err := r.Next()
	require.NoError(t, err)
	require.False(t, r.Gather(1000, false, read))
	require.Equal(t, 3, asked)
	require.False(t, r.Gather(len(frame)-1, false, read))
	require.Equal(t, 3, asked, "the frame is too large")
	require.True(t, r.Gather(len(frame), false, read))
	f, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, "payload", string(f.Payload))
	require.False(t, r.Gather(1000, false, read))
	require.Equal(t, 4, asked)

	pieces = [][]byte{frame, nil}
	require.True(t, r.Gather(1000, true, read), "more is expected behind a whole frame")
	_, err = r.Next()
	require.NoError(t, err)
	require.False(t, r.Gather(1000, true, read), "and did not come")
	require.Equal(t, 6, asked)
}

// Frames of all sizes come out whole however the bytes arrive, and a retained
// one stays what it was while others are read and released elsewhere.
func TestReaderRetain(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		var stream []byte
		var want [][]byte
		for range 1 + r.IntN(200) {
			p := make([]byte, 1+r.IntN(1<<r.IntN(19)))
			for i := range p {
				p[i] = byte(len(want) + i)
			}
			want = append(want, p)
			stream = append(AppendHeader(stream, FlagBinaryPublishBatch, uint32(len(p))), p...)
		}
		reader := NewReader(&randomReader{stream, r}, DefaultMaxFrame)
		type held struct {
			f Frame
			i int
		}
		kept := make(chan held, 32)
		var wg sync.WaitGroup
		wg.Go(func() {
			for h := range kept {
				if !bytes.Equal(want[h.i], h.f.Payload) {
					t.Errorf("seed %d: retained frame %d changed", seed, h.i)
				}
				h.f.Release()
			}
		})
		for i := range want {
			f, err := reader.Next()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[i], f.Payload), "seed %d frame %d", seed, i)
			if r.IntN(2) == 0 {
				f.Retain()
				kept <- held{f, i}
			}
		}
		_, err := reader.Next()
		require.Equal(t, io.EOF, err)
		reader.Close()
		close(kept)
		wg.Wait()
	}
}

// blockingReader counts what the reader holds while it waits for more.
type waitingReader struct {
	frames [][]byte
	reader *Reader
	held   []int
}

func (w *waitingReader) Read(p []byte) (int, error) {
	w.held = append(w.held, len(w.reader.cur.buf))
	if len(w.frames) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.frames[0])
	if w.frames[0] = w.frames[0][n:]; len(w.frames[0]) == 0 {
		w.frames = w.frames[1:]
	}
	return n, nil
}

// After a big frame the reader waits for the next in small memory, and after a
// burst it returns to almost the smallest.
func TestReaderGivesMemoryBack(t *testing.T) {
	big := append(AppendHeader(nil, FlagBinaryPublishBatch, 8<<20), make([]byte, 8<<20)...)
	small := AppendMessage(nil, &PublishOK{RequestID: 1})
	w := &waitingReader{frames: [][]byte{small, big}}
	for range 400 {
		w.frames = append(w.frames, small)
	}
	w.reader = NewReader(w, DefaultMaxFrame)
	for range 402 {
		_, err := w.reader.Next()
		require.NoError(t, err)
	}
	_, err := w.reader.Next()
	require.Equal(t, io.EOF, err)
	require.Equal(t, minChunk, w.held[0])
	require.LessOrEqual(t, w.held[len(w.held)-1], 2*minChunk)
	after := w.held[len(w.held)-400]
	require.LessOrEqual(t, after, 2*maxChunk)
}

func TestReaderAllocatesNothing(t *testing.T) {
	var stream []byte
	for range 100 {
		stream = AppendPublishBatch(stream, &PublishBatchFrame{Acked: true, AckMode: AckPerBatch, Tenant: "t1", Namespace: "default", Stream: "orders", Payloads: [][]byte{make([]byte, 128)}})
	}
	src := bytes.NewReader(stream)
	r := NewReader(src, DefaultMaxFrame)
	var p PublishBatchFrame
	names := new(Names)
	allocs := heap.Allocs(200, func() {
		src.Reset(stream)
		for range 100 {
			f, err := r.Next()
			if err != nil {
				panic(err)
			}
			f.Retain()
			if err := p.Decode(f.Flags, f.Payload, names); err != nil {
				panic(err)
			}
			f.Release()
		}
	})
	require.Less(t, allocs, 1.0, "allocations for 100 frames")
}

func TestLayouts(t *testing.T) {
	counts := map[Layout]int{}
	for f := range uint32(1 << 16) {
		counts[Flags(f).Layout()]++
	}
	// Publish: keyed or not times (plain, acked, acked and idempotent). Ack:
	// owner, offset, and (none, code, code and detail). Events: two layouts,
	// publisher, timestamps, and (none, offsets, offsets and skipped).
	require.Equal(t, 1, counts[LayoutMessage])
	require.Equal(t, 6, counts[LayoutPublish])
	require.Equal(t, 12, counts[LayoutAck])
	require.Equal(t, 24, counts[LayoutEvents])
	require.Equal(t, 1<<16-43, counts[LayoutInvalid])
}

func FuzzFrame(f *testing.F) {
	for _, v := range loadVectors(f) {
		raw, _ := v.frame(f)
		f.Add(raw, uint16(7))
	}
	f.Add(header(Magic, 1, 0, math.MaxUint32), uint16(1))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint16) {
		r := NewReader(&randomReader{bytes.Clone(stream), rand.New(rand.NewPCG(uint64(seed), 0))}, PreAuthMaxFrame)
		defer r.Close()
		var again []byte
		for {
			frame, err := r.Next()
			if err != nil {
				if err == io.EOF {
					require.True(t, bytes.Equal(stream, again))
				}
				return
			}
			require.LessOrEqual(t, len(frame.Payload), PreAuthMaxFrame)
			again = append(AppendHeader(again, frame.Flags, uint32(len(frame.Payload))), frame.Payload...)
			require.Equal(t, stream[:len(again)], again)
			// No payload may make a decoder panic, whatever the flags.
			if err := decodeAny(frame); err == nil {
				require.NotEqual(t, LayoutInvalid, frame.Flags.Layout())
			}
		}
	})
}
