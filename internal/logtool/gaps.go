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
	// Expected is the offset that the first record in the gap should have, Found that of the
	// record behind it; absent when the damage is at a segment's header, or to its end.
	Expected *segment.Offset `json:"expected_offset,omitempty"`
	Found    *segment.Offset `json:"found_offset,omitempty"`
}

// scan prints the records of r, size bytes from at on. shift is added to the positions that
// are printed. With --past-damage it goes on behind damage, at the next whole record, and
// marks what is between; damage is then counted and not returned.
func (d *dumper) scan(ctx context.Context, r io.ReaderAt, size int64, at segment.ScanStart, shift int64) (*segment.Corruption, error) {
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
		if err != nil || res.Damage == nil || !d.o.past {
			return res.Damage, err
		}
		d.gaps++
		header := res.Damage.Position < segment.HeaderSize
		gap := gapLine{Segment: at.Segment, From: res.Damage.Position + shift, To: size + shift, Damage: res.Damage.Kind.String(), Detail: res.Damage.Detail}
		if !header {
			gap.Expected = &res.Next
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
		if err := d.gap(gap); err != nil || !ok {
			return nil, err
		}
		at.Position, at.Offset, at.Version = found.Position, found.Offset, segment.MaxVersion
	}
}

func (d *dumper) gap(g gapLine) error {
	if d.json {
		return printJSON(d.out, map[string]gapLine{"gap": g})
	}
	_, err := fmt.Fprintf(d.out, "# gap: bytes %d to %d of segment %d (%d bytes) hold no whole record: %s, %s", g.From, g.To, g.Segment, g.To-g.From, g.Damage, g.Detail)
	if err == nil && g.Expected != nil && g.Found != nil && *g.Found > *g.Expected {
		_, err = fmt.Fprintf(d.out, "; offsets %d to %d are missing", *g.Expected, *g.Found-1)
	}
	if err == nil {
		_, err = fmt.Fprintln(d.out)
	}
	return err
}
