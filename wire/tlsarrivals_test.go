package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
)

// tlsRecord is a TLS record around text, not encrypted.
func tlsRecord(text string) []byte {
	head := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(text)))
	return append(head, text...)
}

// arriving is a socket that has what its pieces say, one a read, and then ends.
type arriving struct {
	pieces [][]byte
	reads  int
}

func (a *arriving) Read(p []byte) (int, error) {
	a.reads++
	if len(a.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.pieces[0])
	if a.pieces[0] = a.pieces[0][n:]; len(a.pieces[0]) == 0 {
		a.pieces = a.pieces[1:]
	}
	return n, nil
}

// ReadNow gives what a read would, but for an end.
func (a *arriving) ReadNow(p []byte) int {
	if len(a.pieces) == 0 {
		return 0
	}
	n, err := a.Read(p)
	if err != nil {
		return 0
	}
	return n
}

// opener reads as crypto/tls does: it asks for more than it needs, gives out the texts of
// records one at a time, and keeps what else it was given, of which nobody knows.
type opener struct {
	from io.Reader
	have []byte
	text []byte
	room [32 << 10]byte
}

func (o *opener) Read(p []byte) (int, error) {
	for len(o.text) == 0 {
		if len(o.have) >= tlsHeader {
			if n := tlsHeader + int(binary.BigEndian.Uint16(o.have[3:])); len(o.have) >= n {
				o.text, o.have = o.have[tlsHeader:n:n], o.have[n:]
				continue
			}
		}
		n, err := o.from.Read(o.room[:])
		o.have = append(o.have, o.room[:n]...)
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, o.text)
	o.text = o.text[n:]
	return n, nil
}

// opened is a TLSArrivals over a socket with the pieces, and who opens its records.
func opened(pieces ...[]byte) (*TLSArrivals, *opener, *arriving) {
	in := &arriving{pieces: pieces}
	a := &TLSArrivals{Socket: in, Most: 64 << 10}
	return a, &opener{from: a}, in
}

func TestNoReadGivesBytesOfTwoTLSRecords(t *testing.T) {
	first, second := tlsRecord("first"), tlsRecord("second")
	p := make([]byte, 1<<10)
	for cut := range second {
		a, _, _ := opened(append(append(bytes.Clone(first), first...), second[:cut]...), append(bytes.Clone(second[cut:]), first...))
		want := [][]byte{first, first, second, first}
		if cut >= tlsHeader { // then its end is known
			want = [][]byte{first, first, second[:cut], second[cut:], first}
		}
		for _, w := range want {
			n, err := a.Read(p)
			require.NoError(t, err)
			require.Equal(t, string(w), string(p[:n]), "cut at %d", cut)
		}
		_, err := a.Read(p)
		require.ErrorIs(t, err, io.EOF)
	}
}

// A record of which TLS gives out nothing is none to wait behind, or to look for more.
func TestATLSRecordWithoutTextIsNotWaitedBehind(t *testing.T) {
	a, conn, in := opened(append(tlsRecord("one"), tlsRecord("")...), tlsRecord("two"))
	a.Now = in
	p := make([]byte, 1<<10)
	for _, want := range []string{"one", "two"} {
		n, err := a.ReadTogether(conn, p)
		require.NoError(t, err)
		require.Equal(t, want, string(p[:n]))
	}
	require.Equal(t, 2, in.reads)
}

// What arrived whole is taken together; what is there by half is neither waited for nor lost.
func TestWholeTLSRecordsAreReadTogether(t *testing.T) {
	last := tlsRecord("three")
	for cut := range last {
		pieces := [][]byte{append(append(tlsRecord("one,"), tlsRecord("two,")...), last[:cut]...), last[cut:]}
		a, conn, in := opened(pieces...)
		p := make([]byte, 1<<10)
		n, err := a.ReadTogether(conn, p)
		require.NoError(t, err)
		require.Equal(t, "one,two,", string(p[:n]), "cut at %d", cut)
		require.Equal(t, 1, in.reads, "cut at %d", cut)
		n, err = a.ReadTogether(conn, p)
		require.NoError(t, err)
		require.Equal(t, "three", string(p[:n]), "cut at %d", cut)
		_, err = a.ReadTogether(conn, p)
		require.ErrorIs(t, err, io.EOF)
	}
}

// ReadNow looks at the socket itself, if it may, and gives only whole records.
func TestTLSRecordsAreReadNow(t *testing.T) {
	last := tlsRecord("three")
	for cut := range last {
		a, conn, in := opened(tlsRecord("one,"), append(tlsRecord("two,"), last[:cut]...))
		p := make([]byte, 1<<10)
		require.Zero(t, a.ReadNow(conn, p), "there is nothing to ask")
		require.Zero(t, in.reads)
		a.Now = in
		n := a.ReadNow(conn, p)
		n += a.ReadNow(conn, p[n:])
		require.Equal(t, "one,two,", string(p[:n]), "cut at %d", cut)
		require.Zero(t, a.ReadNow(conn, p))
		in.pieces = append(in.pieces, last[cut:])
		n = a.ReadNow(conn, p)
		require.Equal(t, "three", string(p[:n]), "cut at %d", cut)
		require.Zero(t, a.ReadNow(conn, p), "an end is for the next read")
		in.pieces = append(in.pieces, tlsRecord("four"))
		n, err := a.ReadTogether(conn, p)
		require.NoError(t, err)
		require.Equal(t, "four", string(p[:n]))
		_, err = a.ReadTogether(conn, p)
		require.ErrorIs(t, err, io.EOF)
	}
}

// Whatever the sizes of records, of what arrives at once, of reads and of the buffer: the
// bytes are the same, and the buffer keeps its bound.
func TestTLSArrivalsOfAnySize(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 700<<10)
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	for _, most := range []int{arrivalsLeast, 64 << 10, 128 << 10} {
		var all []byte
		for at := 0; at < len(text); {
			end := min(len(text), at+1+r.IntN(1<<(1+r.IntN(14))))
			all = append(all, tlsRecord(string(text[at:end]))...)
			at = end
		}
		var pieces [][]byte
		for len(all) > 0 {
			n := min(len(all), 1+r.IntN(1<<r.IntN(18)))
			pieces, all = append(pieces, all[:n]), all[n:]
		}
		a, conn, _ := opened(pieces...)
		a.Most = most
		var got []byte
		for {
			p := make([]byte, 1+r.IntN(1<<r.IntN(17)))
			n, err := a.ReadTogether(conn, p)
			got = append(got, p[:n]...)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
		}
		require.True(t, bytes.Equal(text, got), "a buffer of %d", most)
		require.Len(t, a.buf, most)
	}
}

// A connection that is mostly idle has the small buffer.
func TestTLSArrivalsBeginSmall(t *testing.T) {
	a, conn, _ := opened(tlsRecord("one"), tlsRecord("two"))
	p := make([]byte, 1<<10)
	for range 2 {
		_, err := a.ReadTogether(conn, p)
		require.NoError(t, err)
	}
	require.Len(t, a.buf, 4<<10)
}

// endless is a socket that has the same record again and again.
type endless struct{ record, rest []byte }

func (e *endless) Read(p []byte) (int, error) {
	all := len(p)
	for len(p) > 0 {
		if len(e.rest) == 0 {
			e.rest = e.record
		}
		n := copy(p, e.rest)
		p, e.rest = p[n:], e.rest[n:]
	}
	return all, nil
}

// A buffer that has been filled is the last one.
func TestGuardTLSArrivalsAllocateNothing(t *testing.T) {
	a := &TLSArrivals{Socket: &endless{record: tlsRecord("a record of some size")}, Most: 16 << 10}
	p := make([]byte, 1<<10)
	turn := func() {
		for range 1000 {
			if _, err := a.Read(p); err != nil {
				t.Error(err)
			}
		}
	}
	turn()
	require.Len(t, a.buf, 16<<10)
	require.Zero(t, heap.Allocs(20, turn))
}

// More is known without another read of the socket: by a part of a record, or for want of
// room.
func TestMoreTLSRecordsAreExpected(t *testing.T) {
	last := tlsRecord("three")
	for cut := range last {
		a, conn, in := opened(append(append(tlsRecord("one,"), tlsRecord("two,")...), last[:cut]...), last[cut:])
		p := make([]byte, 1<<10)
		_, err := a.ReadTogether(conn, p)
		require.NoError(t, err)
		require.Equal(t, cut > 0, a.More(), "cut at %d", cut)
		a.Now = in
		require.NotZero(t, a.ReadNow(conn, p))
		require.False(t, a.More(), "cut at %d", cut)
	}
	a, conn, _ := opened(append(tlsRecord("one,"), tlsRecord("two,")...))
	for range 2 {
		_, err := a.ReadTogether(conn, make([]byte, 4))
		require.NoError(t, err)
		require.True(t, a.More())
	}
	require.Zero(t, a.ReadNow(conn, make([]byte, 4)))
	require.False(t, a.More())
}
