package stream

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/felixlog/felix/internal/testkit/heap"
	"github.com/felixlog/felix/storage/segment"
)

// producersFile is the file of docs/formats: one producer with one batch of the
// payloads "a" and "b".
const producersFile = "464c505300020000000000000000000a0000000113507f1f00f1e2d3c4b5a6978800000000000000030001000000000000000800000002011496bcd571e6359d"

func TestDigestIsThatOfTheFormat(t *testing.T) {
	require.Equal(t, uint64(0x1496bcd571e6359d), Digest([][]byte{[]byte("a"), []byte("b")}))
}

func TestSnapshotOfReplayedRecordsIsTheFormatsVector(t *testing.T) {
	var p Producers
	p.Replay(&segment.Record{Offset: 8, Kind: segment.KindProducerFirst, Payload: []byte("a"), Producer: segment.ProducerTag{ID: 0xf1e2d3c4b5a69788, Sequence: 3, Len: 2}})
	_, open := p.OpenBatch()
	require.True(t, open, "the batch lacks a record")
	p.Replay(&segment.Record{Offset: 9, Kind: segment.KindProducerNext, Payload: []byte("b")})
	want, err := hex.DecodeString(producersFile)
	require.NoError(t, err)
	require.Equal(t, want, segment.AppendProducers(nil, p.Snapshot(10)))

	s, err := segment.DecodeProducers(want)
	require.NoError(t, err)
	var q Producers
	q.Restore(s)
	first, err := q.Admit(0xf1e2d3c4b5a69788, 3, 2, Digest([][]byte{[]byte("a"), []byte("b")}), 10)
	require.ErrorIs(t, err, ErrDuplicate)
	require.Equal(t, segment.Offset(8), first)
	_, err = q.Admit(0xf1e2d3c4b5a69788, 3, 2, Digest([][]byte{[]byte("a"), []byte("x")}), 10)
	require.ErrorIs(t, err, ErrSequenceReused)
}

func TestSequencesOfAProducer(t *testing.T) {
	var p Producers
	admit := func(seq uint64, next segment.Offset) (segment.Offset, error) { return p.Admit(7, seq, 1, seq, next) }

	_, err := admit(1, 0)
	require.ErrorIs(t, err, ErrUnknownProducer)
	for seq := range uint64(RememberedBatches + 2) {
		first, err := admit(seq, segment.Offset(seq))
		require.NoError(t, err)
		require.Equal(t, segment.Offset(seq), first)
	}
	next := segment.Offset(RememberedBatches + 2)
	p.Stable(next)

	_, err = admit(uint64(next)+1, next)
	var gap *SequenceGapError
	require.ErrorAs(t, err, &gap)
	require.Equal(t, uint64(next), gap.Expected)

	_, err = admit(1, next)
	require.ErrorIs(t, err, ErrSequenceExpired)
	first, err := admit(2, next)
	require.ErrorIs(t, err, ErrDuplicate)
	require.Equal(t, segment.Offset(2), first)
}

func TestRevertKeepsWhatIsBelowTheCut(t *testing.T) {
	var p Producers
	for seq := range uint64(3) {
		_, err := p.Admit(1, seq, 2, seq, segment.Offset(2*seq))
		require.NoError(t, err)
	}
	_, err := p.Admit(2, 0, 1, 9, 6)
	require.NoError(t, err)

	p.Revert(4) // the batches at 4 and 6 are taken back
	require.Equal(t, 2, p.InFlight())
	p.Stable(4)
	_, err = p.Admit(2, 1, 1, 9, 4)
	require.ErrorIs(t, err, ErrUnknownProducer)
	first, err := p.Admit(1, 2, 2, 2, 4)
	require.NoError(t, err)
	require.Equal(t, segment.Offset(4), first)
}

func TestTheProducerWrittenLeastRecentlyIsForgotten(t *testing.T) {
	var p Producers
	next := segment.Offset(0)
	write := func(id, seq uint64) {
		_, err := p.Admit(id, seq, 1, 0, next)
		require.NoError(t, err)
		next++
		p.Stable(next)
	}
	for id := range uint64(MaxProducers) {
		write(id, 0)
	}
	write(0, 1)            // now 1 is the oldest
	write(MaxProducers, 0) // one too many
	require.Equal(t, MaxProducers, p.Len())
	_, err := p.Admit(1, 1, 1, 0, next)
	require.ErrorIs(t, err, ErrUnknownProducer)
	write(0, 2)
}

// producerModel is the specification, written without thought for speed: the batches
// of the log, each with what its producer said.
type producerModel struct {
	stable, flying []modelBatch
}

type modelBatch struct {
	id, seq, digest uint64
	n               int
	first           segment.Offset
}

func (m *producerModel) all() []modelBatch { return append(slices.Clone(m.stable), m.flying...) }

func (m *producerModel) judge(id, seq, digest uint64, n int) (first segment.Offset, err error) {
	var mine []modelBatch
	for _, b := range m.all() {
		if b.id == id {
			mine = append(mine, b)
		}
	}
	switch {
	case len(mine) == 0 && seq != 0:
		return 0, ErrUnknownProducer
	case seq == uint64(len(mine)):
		return 0, nil
	case seq > uint64(len(mine)):
		return 0, &SequenceGapError{Expected: uint64(len(mine))}
	case uint64(len(mine))-seq > RememberedBatches:
		return 0, ErrSequenceExpired
	}
	b := mine[seq]
	if b.digest != digest || b.n != n {
		return b.first, ErrSequenceReused
	}
	return b.first, ErrDuplicate
}

func (m *producerModel) next() segment.Offset {
	all := m.all()
	if len(all) == 0 {
		return 0
	}
	last := all[len(all)-1]
	return last.first + segment.Offset(last.n)
}

func TestProducersAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Producers
		var m producerModel
		next := segment.Offset(0)
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				id := rapid.Uint64Range(1, 3).Draw(t, "id")
				seq := rapid.Uint64Range(0, 4).Draw(t, "seq")
				if rapid.Bool().Draw(t, "expected") {
					seq = 0
					for _, b := range m.all() {
						if b.id == id {
							seq++
						}
					}
				}
				n := rapid.IntRange(1, 3).Draw(t, "n")
				digest := rapid.Uint64Range(0, 1).Draw(t, "digest")
				want, wantErr := m.judge(id, seq, digest, n)
				got, err := p.Admit(id, seq, n, digest, next)
				require.Equal(t, wantErr, err)
				if err == nil {
					require.Equal(t, next, got)
					m.flying = append(m.flying, modelBatch{id: id, seq: seq, digest: digest, n: n, first: next})
					next += segment.Offset(n)
				} else if errors.Is(err, ErrDuplicate) || errors.Is(err, ErrSequenceReused) {
					require.Equal(t, want, got)
				}
			},
			"stable": func(t *rapid.T) {
				n := rapid.IntRange(0, len(m.flying)).Draw(t, "batches")
				m.stable = append(m.stable, m.flying[:n]...)
				m.flying = slices.Clone(m.flying[n:])
				end := next
				if len(m.flying) > 0 {
					end = m.flying[0].first
				}
				p.Stable(end)
			},
			"revert": func(t *rapid.T) {
				n := rapid.IntRange(0, len(m.flying)).Draw(t, "kept")
				m.flying = m.flying[:n]
				if n == 0 && len(m.stable) == 0 {
					next = 0
				} else {
					next = m.next()
				}
				p.Revert(next)
			},
			"reopen": func(t *rapid.T) {
				m.flying = nil
				next = m.next()
				p.Revert(next)
				var fresh Producers
				fresh.Restore(mustDecode(t, segment.AppendProducers(nil, p.Snapshot(next))))
				p = fresh
			},
			"": func(t *rapid.T) { require.Equal(t, len(m.flying), p.InFlight()) },
		})
	})
}

func mustDecode(t *rapid.T, b []byte) *segment.ProducerSnapshot {
	s, err := segment.DecodeProducers(b)
	require.NoError(t, err)
	return s
}

// Replaying the records of a log, from any point of it on top of a snapshot taken
// there, gives the table that admitting its batches gave.
func TestReplayGivesTheTableOfAdmission(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var live Producers
		var records []segment.Record
		var snapshots []*segment.ProducerSnapshot
		seqs := map[uint64]uint64{}
		for range rapid.IntRange(1, 200).Draw(t, "batches") {
			next := segment.Offset(len(records))
			snapshots = append(snapshots, live.Snapshot(next))
			id := rapid.Uint64Range(0, 5).Draw(t, "id")
			if id == 0 {
				records = append(records, segment.Record{Offset: next, Payload: []byte("plain")})
				continue
			}
			n := rapid.IntRange(1, 3).Draw(t, "n")
			var payloads [][]byte
			for i := range n {
				payload := fmt.Appendf(nil, "%d", int(next)+i)
				payloads = append(payloads, payload)
				r := segment.Record{Offset: next + segment.Offset(i), Kind: segment.KindProducerNext, Payload: payload}
				if i == 0 {
					r.Kind, r.Producer = segment.KindProducerFirst, segment.ProducerTag{ID: id, Sequence: seqs[id], Len: uint32(n)}
				}
				records = append(records, r)
			}
			_, err := live.Admit(id, seqs[id], n, Digest(payloads), next)
			require.NoError(t, err)
			seqs[id]++
			live.Stable(segment.Offset(len(records)))
		}
		end := segment.Offset(len(records))
		from := rapid.SampledFrom(snapshots).Draw(t, "snapshot")
		var rebuilt Producers
		rebuilt.Restore(from)
		for i := range records[from.AsOf:] {
			rebuilt.Replay(&records[int(from.AsOf)+i])
		}
		want, got := segment.AppendProducers(nil, live.Snapshot(end)), segment.AppendProducers(nil, rebuilt.Snapshot(end))
		require.True(t, bytes.Equal(want, got), "snapshot at %d of %d", from.AsOf, end)
	})
}

func TestGuardAdmissionDoesNotAllocate(t *testing.T) {
	var p Producers
	seq, next := uint64(0), segment.Offset(0)
	step := func() {
		for range 16 {
			if _, err := p.Admit(1, seq, 1, 0, next); err != nil {
				t.Fatal(err)
			}
			seq, next = seq+1, next+1
		}
		p.Stable(next)
	}
	for range 100 {
		step()
	}
	require.Zero(t, heap.Allocs(200, step))
}
