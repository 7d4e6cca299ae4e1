package logtool

import (
	"context"
	"fmt"
	"io"

	"github.com/felixlog/felix/storage/segment"
)

// gapLine is a part of a segment that holds no whole record, as dump prints it when it goes
// on behind damage.
type gapLine struct {
	Segment segment.ID `json:"segment"`
	From    int64      `json:"from"` // first byte
	To      int64      `json:"to"`   // one past the last
	Damage  string     `json:"damage"`
	Detail  string     `json:"detail"`
	// Expected is the offset that the first record in the gap should have, Found that of what
	// is behind it, a record or the next segment. Absent: not known.
	Expected *segment.Offset `json:"expected_offset,omitempty"`
	Found    *segment.Offset `json:"found_offset,omitempty"`
}

// scan prints the records of r, size bytes from at on. shift is added to the positions that
// are printed. With --past-damage it goes on behind damage, at the next whole record, and
// marks what is between; damage is then counted and not returned.
func (d *dumper) scan(ctx context.Context, r io.ReaderAt, size int64, at segment.ScanStart, shift int64) (*segment.Corruption, error) {
	end := d.next
	defer func() {
		if !d.full && end.known {
			d.next = end
		}
	}()
	for {
		position := max(at.Position, segment.HeaderSize)
		res, err := segment.Scan(ctx, r, size, at, func(rec *segment.Record) error {
			was := position
			position += int64(rec.Size)
			if rec.Offset < segment.Offset(d.o.from) {
				return nil
			}
			if d.o.to > 0 && rec.Offset >= segment.Offset(d.o.to) || d.o.limit > 0 && d.printed >= d.o.limit {
				d.full = true
				return segment.ErrStop
			}
			d.printed++
			return d.record(rec, at.Segment, was+shift)
		})
		header := res.Damage != nil && res.Damage.Position < segment.HeaderSize
		if !header {
			end = place{res.Next, true}
		}
		if err != nil || res.Damage == nil || !d.o.past {
			return res.Damage, err
		}
		gap := gapLine{Segment: at.Segment, From: res.Damage.Position + shift, To: size + shift, Damage: res.Damage.Kind.String(), Detail: res.Damage.Detail}
		if end.known {
			gap.Expected = new(end.offset)
		}
		// No more records can be missing than the gap has room for. A record that a payload
		// holds seldom passes for one that was there.
		fits := func(f segment.Found) bool {
			room := segment.Offset(f.Position-res.Damage.Position) / segment.RecordHeaderSize
			return header || f.Offset >= res.Next && f.Offset-res.Next <= room
		}
		found, ok, err := segment.Search(ctx, r, size, max(res.Damage.Position+1, segment.HeaderSize), fits)
		if err != nil {
			return nil, err
		}
		if ok {
			gap.To, gap.Found = found.Position+shift, &found.Offset
		}
		if !ok {
			return nil, d.open(gap)
		}
		if err := d.gap(gap); err != nil {
			return nil, err
		}
		at.Position, at.Offset, at.Version = found.Position, found.Offset, segment.MaxVersion
	}
}

// place is an offset, if it is known.
type place struct {
	offset segment.Offset
	known  bool
}

// meets says whether segment id, which begins at base, goes on where the one before ended,
// and where it begins if that is behind a gap. The first one may begin anywhere: what was
// before it was trimmed.
func (d *dumper) meets(id segment.ID, base segment.Offset) error {
	gap := d.pending != nil
	if gap {
		d.pending.Found = &base
		if err := d.closeGap(); err != nil {
			return err
		}
	}
	next := d.next
	d.next = place{base, true}
	if !next.known || base == next.offset || gap && base > next.offset {
		return nil
	}
	c := &segment.Corruption{
		Segment: id, Position: 8, Kind: segment.OffsetOutOfOrder, Offset: next.offset,
		Detail: fmt.Sprintf("the segment begins at offset %d, the one before ends at %d", base, next.offset),
	}
	if !d.o.past {
		return fmt.Errorf("%w: %w", ErrDamaged, c)
	}
	return d.gap(gapLine{Segment: id, Damage: c.Kind.String(), Detail: c.Detail, Expected: &next.offset, Found: &base})
}

// noHeader is a segment of size bytes that others follow and that has none.
func (d *dumper) noHeader(id segment.ID, size int64) error {
	c := &segment.Corruption{Segment: id, Kind: segment.HeaderTruncated, Detail: fmt.Sprintf("%d bytes, and no segment header", size)}
	if !d.o.past {
		return fmt.Errorf("%w: %w", ErrDamaged, c)
	}
	g := gapLine{Segment: id, To: size, Damage: c.Kind.String(), Detail: c.Detail}
	if d.next.known {
		g.Expected = new(d.next.offset)
	}
	return d.open(g)
}

// open holds a gap that goes to the end of its segment until the next one says where it
// begins.
func (d *dumper) open(g gapLine) error {
	err := d.closeGap()
	d.pending = &g
	return err
}

// closeGap marks the gap that is held, if there is one.
func (d *dumper) closeGap() error {
	g := d.pending
	if g == nil {
		return nil
	}
	d.pending = nil
	return d.gap(*g)
}

func (d *dumper) gap(g gapLine) error {
	if err := d.closeGap(); err != nil {
		return err
	}
	d.gaps++
	if d.json {
		return printJSON(d.out, map[string]gapLine{"gap": g})
	}
	var err error
	if g.From == g.To {
		_, err = fmt.Fprintf(d.out, "# gap: before segment %d: %s, %s", g.Segment, g.Damage, g.Detail)
	} else {
		_, err = fmt.Fprintf(d.out, "# gap: bytes %d to %d of segment %d (%d bytes) hold no whole record: %s, %s", g.From, g.To, g.Segment, g.To-g.From, g.Damage, g.Detail)
	}
	if err == nil && g.Expected != nil && g.Found != nil && *g.Found > *g.Expected {
		_, err = fmt.Fprintf(d.out, "; offsets %d to %d are missing", *g.Expected, *g.Found-1)
	}
	if err == nil {
		_, err = fmt.Fprintln(d.out)
	}
	return err
}
