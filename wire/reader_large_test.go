package wire

import (
	"io"
	"runtime"
	"testing"
)

// A large frame that arrives in small pieces is not copied for each of them: what is
// allocated for it stays within a few times its size.
func TestReaderLargeFrameInSmallPieces(t *testing.T) {
	frame := AppendHeader(nil, FlagBinaryPublishBatch, 8<<20)
	frame = append(frame, make([]byte, 8<<20)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := NewReader(&pieces{b: frame, size: 1400}, 16<<20)
	f, err := r.Next()
	if err != nil || len(f.Payload) != 8<<20 {
		t.Fatal(len(f.Payload), err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 40<<20 {
		t.Fatalf("%d MiB allocated for a frame of 8 MiB", got>>20)
	}
}

// pieces gives out size bytes a Read.
type pieces struct {
	b    []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b[:min(p.size, len(p.b))])
	p.b = p.b[n:]
	return n, nil
}
