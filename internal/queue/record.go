package queue

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/felixlog/felix/internal/projection"
)

// The group log's keys: group name, 0x00, kind, and for all but the first two kinds an
// offset or a block number as big-endian u64. Values begin with a version byte.
//
//	'm'        u8 1 | start | position | handed | acked | discarded | lost | skipped, each u64
//	'c'        u8 1 | visibility i64 ns | max_attempts u32 | backoff i64 | backoff_max i64 |
//	           factor f64 | max_in_flight u32 | exclusive u8
//	'b' block  u8 1 | 32 bytes, bit i of byte i/8 set when offset block*256+i is settled |
//	           count u16 | count of (index u8, attempts u16), for those above one attempt
//	'd' offset u8 1 | attempts u32 | reason u8 | at u64 µs | copied u8
//	'r' offset u8 1 | attempts u16 | copied u8              a redriven dead letter
//	'p' offset the payload of a dead letter or redriven record, without more
const (
	kindMeta    = 'm'
	kindConfig  = 'c'
	kindBlock   = 'b'
	kindDead    = 'd'
	kindAgain   = 'r'
	KindPayload = 'p'

	valueVersion = 1
	metaSize     = 1 + 7*8
	configSize   = 1 + 8 + 4 + 8 + 8 + 8 + 4 + 1
	blockMin     = 1 + blockSize/8 + 2
	deadSize     = 1 + 4 + 1 + 8 + 1
	againSize    = 1 + 2 + 1
)

// Key is the key of a group's entry of a kind; n is not used for 'm' and 'c'.
func Key(group string, kind byte, n uint64) []byte {
	return appendKey(make([]byte, 0, len(group)+10), group, kind, n)
}

func appendKey(k []byte, group string, kind byte, n uint64) []byte {
	k = append(k, group...)
	k = append(k, 0, kind)
	if kind != kindMeta && kind != kindConfig {
		k = binary.BigEndian.AppendUint64(k, n)
	}
	return k
}

func parseKey(k []byte) (group string, kind byte, n uint64, err error) {
	for i, c := range k {
		if c != 0 {
			continue
		}
		rest := k[i+1:]
		switch {
		case len(rest) == 1 && (rest[0] == kindMeta || rest[0] == kindConfig):
			return string(k[:i]), rest[0], 0, nil
		case len(rest) == 9:
			return string(k[:i]), rest[0], binary.BigEndian.Uint64(rest[1:]), nil
		}
		break
	}
	return "", 0, 0, fmt.Errorf("queue: %q is not the key of a group's entry", k)
}

// Dirty reports whether Encode has something to write.
func (g *Group) Dirty() bool { return g.dirty || g.dirtyConfig }

// entries gathers entries of a group, whose keys and values are in room. When that is
// full a larger one takes its place; what is in the old one stays there.
type entries struct {
	group string
	out   []projection.Entry
	room  []byte
}

func (e *entries) gone(kind byte, n uint64) {
	from := len(e.room)
	e.room = appendKey(e.room, e.group, kind, n)
	e.out = append(e.out, projection.Entry{Delete: true, Key: e.room[from:len(e.room):len(e.room)]})
}

func (e *entries) put(kind byte, n uint64, v interface{ appendTo(dst []byte) []byte }) {
	from := len(e.room)
	e.room = appendKey(e.room, e.group, kind, n)
	value := len(e.room)
	e.room = v.appendTo(e.room)
	e.out = append(e.out, projection.Entry{Key: e.room[from:value:value], Value: e.room[value:len(e.room):len(e.room)]})
}

// Encode is AppendEntries with memory of its own.
func (g *Group) Encode(out []projection.Entry) []projection.Entry {
	out, _ = g.AppendEntries(out, nil)
	return out
}

// AppendEntries appends the entries that restate what changed since it was last called, as
// one decision. Nothing changed: nothing appended. Their keys and values are appended to
// room, and are good until its memory is used again.
func (g *Group) AppendEntries(out []projection.Entry, room []byte) ([]projection.Entry, []byte) {
	if !g.Dirty() {
		return out, room
	}
	e := entries{group: g.name, out: out, room: room}
	// Deletes come first: a seek drops a block that may be written anew with it.
	for _, n := range g.goneBlocks {
		e.gone(kindBlock, n)
	}
	for _, o := range g.goneCopies {
		e.gone(KindPayload, uint64(o))
	}
	e.put(kindMeta, 0, (*meta)(g))
	if g.dirtyConfig {
		e.put(kindConfig, 0, g.cfg)
	}
	for i := range g.win.blocks {
		n := g.win.first + uint64(i)
		if b := g.win.blocks[i]; b == nil {
			if m := &g.win.done[i]; m.dirty {
				e.put(kindBlock, n, (*block)(nil))
				*m = blockMark{stored: true}
			}
		} else if b.dirty {
			if b.says(g.position, Offset(n*blockSize)) {
				e.put(kindBlock, n, b)
				b.stored = true
			}
			b.dirty = false
		}
	}
	for o := range g.dirtyDead {
		if d, ok := g.dead[o]; ok {
			e.put(kindDead, uint64(o), d)
		} else {
			e.gone(kindDead, uint64(o))
		}
		if g.again[o] == nil {
			e.gone(kindAgain, uint64(o))
		}
	}
	for o, r := range g.again {
		if r.dirty {
			e.put(kindAgain, uint64(o), r)
			r.dirty = false
		}
	}
	g.dirty, g.dirtyConfig, g.existed = false, false, true
	g.dirtyDead, g.goneBlocks, g.goneCopies = nil, nil, nil
	return e.out, e.room
}

// EncodeDelete appends the entries that make the log forget the group.
func (g *Group) EncodeDelete(out []projection.Entry) []projection.Entry {
	gone := func(kind byte, n uint64) {
		out = append(out, projection.Entry{Delete: true, Key: Key(g.name, kind, n)})
	}
	gone(kindMeta, 0)
	gone(kindConfig, 0)
	for i := range g.win.blocks {
		gone(kindBlock, g.win.first+uint64(i))
	}
	for _, n := range g.goneBlocks {
		gone(kindBlock, n)
	}
	for o, d := range g.dead {
		gone(kindDead, uint64(o))
		if d.Copied {
			gone(KindPayload, uint64(o))
		}
	}
	for o, r := range g.again {
		gone(kindAgain, uint64(o))
		if r.copied {
			gone(KindPayload, uint64(o))
		}
	}
	for o := range g.dirtyDead {
		gone(kindDead, uint64(o))
		gone(kindAgain, uint64(o))
	}
	for _, o := range g.goneCopies {
		gone(KindPayload, uint64(o))
	}
	return out
}

// meta is a Group as the value of its entry of kind 'm'.
type meta Group

func (g *meta) appendTo(v []byte) []byte {
	v = append(v, valueVersion)
	for _, n := range [...]uint64{uint64(g.start), uint64(g.position), uint64(g.handed), g.acked, g.discarded, g.lost, g.skipped} {
		v = binary.BigEndian.AppendUint64(v, n)
	}
	return v
}

func (g *Group) decodeMeta(v []byte) error {
	if err := checkValue("position", v, metaSize, metaSize); err != nil {
		return err
	}
	var n [7]uint64
	for i := range n {
		n[i] = binary.BigEndian.Uint64(v[1+8*i:])
	}
	g.start, g.position, g.handed = Offset(n[0]), Offset(n[1]), Offset(n[2])
	g.acked, g.discarded, g.lost, g.skipped = n[3], n[4], n[5], n[6]
	if g.start > g.position || g.position > g.handed || g.handed-g.position > math.MaxInt32 {
		return fmt.Errorf("queue: group %q: start %d, position %d, handed %d do not ascend", g.name, g.start, g.position, g.handed)
	}
	return nil
}

func (c Config) appendTo(v []byte) []byte {
	v = append(v, valueVersion)
	v = binary.BigEndian.AppendUint64(v, uint64(c.Visibility))
	v = binary.BigEndian.AppendUint32(v, uint32(c.MaxAttempts))
	v = binary.BigEndian.AppendUint64(v, uint64(c.Backoff))
	v = binary.BigEndian.AppendUint64(v, uint64(c.BackoffMax))
	v = binary.BigEndian.AppendUint64(v, math.Float64bits(c.Factor))
	v = binary.BigEndian.AppendUint32(v, uint32(c.MaxInFlight))
	if c.Exclusive {
		return append(v, 1)
	}
	return append(v, 0)
}

func decodeConfig(v []byte) (Config, error) {
	if err := checkValue("configuration", v, configSize, configSize); err != nil {
		return Config{}, err
	}
	c := Config{
		Visibility:  time.Duration(binary.BigEndian.Uint64(v[1:])),
		MaxAttempts: int(binary.BigEndian.Uint32(v[9:])),
		Backoff:     time.Duration(binary.BigEndian.Uint64(v[13:])),
		BackoffMax:  time.Duration(binary.BigEndian.Uint64(v[21:])),
		Factor:      math.Float64frombits(binary.BigEndian.Uint64(v[29:])),
		MaxInFlight: int(binary.BigEndian.Uint32(v[37:])),
		Exclusive:   v[41] == 1,
	}
	return c, c.Validate()
}

// says reports whether the block, whose first offset is first, holds anything that the
// position does not say. An entry written before stays true: bits are only added to it, and
// Unclaim has it written anew.
func (b *block) says(position, first Offset) bool {
	for i := range b.items {
		if it := &b.items[i]; it.attempts > 1 || it.state == settled && first+Offset(i) >= position {
			return true
		}
	}
	return false
}

// appendTo appends a block; nil is one that is settled as a whole.
func (b *block) appendTo(v []byte) []byte {
	from := len(v)
	v = append(v, make([]byte, blockMin)...)
	v[from] = valueVersion
	count := uint16(0)
	for i := range blockSize {
		switch {
		case b == nil || b.items[i].state == settled:
			v[from+1+i/8] |= 1 << (i % 8)
		case b.items[i].attempts > 1:
			v = append(v, byte(i))
			v = binary.BigEndian.AppendUint16(v, b.items[i].attempts)
			count++
		}
	}
	binary.BigEndian.PutUint16(v[from+1+blockSize/8:], count)
	return v
}

// decodeBlock calls item for each offset of the block that is settled or has attempts.
func decodeBlock(v []byte, f func(i int, done bool, attempts uint16)) error {
	if err := checkValue("block", v, blockMin, blockMin+3*blockSize); err != nil {
		return err
	}
	count := int(binary.BigEndian.Uint16(v[1+blockSize/8:]))
	if len(v) != blockMin+3*count {
		return fmt.Errorf("queue: block with %d attempts in %d bytes", count, len(v))
	}
	for i := range blockSize {
		if v[1+i/8]&(1<<(i%8)) != 0 {
			f(i, true, 0)
		}
	}
	for p := blockMin; p < len(v); p += 3 {
		f(int(v[p]), false, binary.BigEndian.Uint16(v[p+1:]))
	}
	return nil
}

func (d DeadLetter) appendTo(v []byte) []byte {
	v = append(v, valueVersion)
	v = binary.BigEndian.AppendUint32(v, d.Attempts)
	v = append(v, byte(d.Reason))
	v = binary.BigEndian.AppendUint64(v, uint64(d.At))
	return append(v, flag(d.Copied))
}

func decodeDead(v []byte) (DeadLetter, error) {
	if err := checkValue("dead letter", v, deadSize, deadSize); err != nil {
		return DeadLetter{}, err
	}
	return DeadLetter{
		Attempts: binary.BigEndian.Uint32(v[1:]),
		Reason:   Reason(v[5]),
		At:       Micros(binary.BigEndian.Uint64(v[6:])),
		Copied:   v[14] == 1,
	}, nil
}

func (r *reopened) appendTo(v []byte) []byte {
	v = binary.BigEndian.AppendUint16(append(v, valueVersion), r.attempts)
	return append(v, flag(r.copied))
}

func decodeAgain(v []byte) (*reopened, error) {
	if err := checkValue("redriven record", v, againSize, againSize); err != nil {
		return nil, err
	}
	return &reopened{item: item{state: ready, attempts: binary.BigEndian.Uint16(v[1:])}, copied: v[3] == 1}, nil
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func checkValue(what string, v []byte, least, most int) error {
	if len(v) == 0 || v[0] != valueVersion {
		return fmt.Errorf("queue: %s entry of an unknown version", what)
	}
	if len(v) < least || len(v) > most {
		return fmt.Errorf("queue: %s entry of %d bytes", what, len(v))
	}
	return nil
}
