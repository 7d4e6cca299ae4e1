package logtool

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// dumpOptions say which records are printed, and how much of each.
type dumpOptions struct {
	from, to uint64
	limit    int64
	payload  string
	width    int
	past     bool // go on behind damage
}

func dumpCommand() *cobra.Command {
	var c command
	var o dumpOptions
	cmd := &cobra.Command{
		Use:   "dump --dir DIR|FILE",
		Short: "Print the records of a shard's log, or the content of one of its files",
		Long: "dump prints records in order, each verified before it is printed, and ends at the first damage with exit code 1: a\n" +
			"segment that does not begin where the one before ends is damage too. A first one above offset 0 is none.\n" +
			"With --past-damage it goes on at the next record that is whole, marks each gap with its bytes and the offsets that are\n" +
			"missing, and ends with exit code 1 all the same: behind damage a record may be one that a payload held, and not the log's.\n" +
			"Given a file it prints that one: a segment, an index, durable.mark, replica, epochs or producers.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch o.payload {
			case "none", "text", "hex", "full":
			default:
				return usagef("--payload %q is none of none, text, hex, full", o.payload)
			}
			return c.locked(false, func(func() error) error { return c.dump(cmd, o) })
		},
	}
	c.flags(cmd, "shard directory, or a file in one")
	c.readOnlyFlag(cmd)
	cmd.Flags().Uint64Var(&o.from, "from", 0, "first offset to print")
	cmd.Flags().Uint64Var(&o.to, "to", 0, "first offset not to print (0: to the end)")
	cmd.Flags().Int64Var(&o.limit, "limit", 0, "most records to print (0: no limit)")
	cmd.Flags().StringVar(&o.payload, "payload", "text", "how to print payloads: none, text (quoted, cut), hex (cut), full (quoted)")
	cmd.Flags().BoolVar(&o.past, "past-damage", false, "go on behind damage, at the next whole record")
	cmd.Flags().IntVar(&o.width, "width", 64, "bytes of a payload that are printed before it is cut")
	return cmd
}

func (c *command) dump(cmd *cobra.Command, o dumpOptions) (err error) {
	fsys := vfs.OS()
	info, err := fsys.Stat(c.dir)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	defer func() { err = errors.Join(err, out.Flush()) }()
	d := dumper{fsys: fsys, out: out, json: c.json, o: o}
	if !info.IsDir() {
		return errors.Join(d.file(cmd.Context(), c.dir), d.closeGap(), d.damaged())
	}
	l, err := list(fsys, c.dir)
	if err != nil {
		return err
	}
	if len(l.segments) == 0 {
		return fmt.Errorf("no segments in %s", c.dir)
	}
	v := verifier{fsys: fsys, dir: c.dir, listing: l}
	for i, id := range l.segments {
		if i+1 < len(l.segments) {
			// Skip what ends before the first offset asked for.
			if next, err := v.baseOf(cmd.Context(), i+1); err != nil {
				return err
			} else if next <= segment.Offset(o.from) {
				d.next = place{} // what is not asked for is not looked at
				continue
			}
		}
		if d.next.known && o.to > 0 && d.next.offset >= segment.Offset(o.to) || o.limit > 0 && d.printed >= o.limit {
			break // whether it meets what follows was not asked
		}
		where := middle
		if i+1 == len(l.segments) {
			where = newest
		} else if i == 0 {
			where = oldest
		}
		if err := d.segment(cmd.Context(), filepath.Join(c.dir, segment.SegmentName(id)), id, where); err != nil {
			return err
		}
		if d.full {
			break
		}
	}
	return errors.Join(d.closeGap(), d.damaged())
}

// damaged is the error of gaps that were passed over.
func (d *dumper) damaged() error {
	if d.gaps == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d gaps were passed over; what stands behind one may be no record of the log", ErrDamaged, d.gaps)
}

// dumper prints.
type dumper struct {
	fsys    vfs.FS
	out     *bufio.Writer
	json    bool
	o       dumpOptions
	printed int64
	gaps    int
	full    bool
	next    place    // what the next segment should begin at
	pending *gapLine // to the end of a segment; what is behind it is not known yet
}

// position is where a segment stands in what is printed.
type position int

const (
	alone position = iota
	oldest
	middle
	newest
)

// recordLine is a record as dump prints it.
type recordLine struct {
	Offset    segment.Offset `json:"offset"`
	Micros    segment.Micros `json:"timestamp_micros"`
	Kind      string         `json:"kind"`
	Segment   segment.ID     `json:"segment"`
	Position  int64          `json:"position"`
	Size      int            `json:"size"`
	Checksum  string         `json:"checksum"`
	Producer  *producerLine  `json:"producer,omitempty"`
	Publisher *string        `json:"publisher,omitempty"`
	Gen       uint64         `json:"generation,omitempty"`
	Event     []byte         `json:"event,omitempty"`
	Ops       []opLine       `json:"ops,omitempty"`
	Payload   []byte         `json:"payload,omitempty"` // base64
}

type producerLine struct {
	ID       string `json:"id"`
	Sequence uint64 `json:"sequence"`
	Len      uint32 `json:"len"`
}

type opLine struct {
	Op    string `json:"op"`
	Key   []byte `json:"key"`
	Value []byte `json:"value,omitempty"`
}

// segment prints the records of one segment file.
func (d *dumper) segment(ctx context.Context, path string, id segment.ID, where position) (err error) {
	f, err := d.fsys.OpenFile(path, vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	state, header, _, err := segment.HeaderState(ctx, f, size)
	if err != nil {
		return err
	}
	if state == segment.HeaderGood && where != alone {
		if err := d.meets(id, header.BaseOffset); err != nil {
			return err
		}
	}
	if state == segment.HeaderShort || state == segment.HeaderZero {
		// As verify has it: the newest is a roll that was not finished, and so is a short one
		// between two that meet.
		if where == oldest || where == middle && state == segment.HeaderZero {
			return d.noHeader(id, size)
		}
		if !d.json {
			fmt.Fprintf(d.out, "# %s: %d bytes, without a segment header\n", filepath.Base(path), size)
		}
		return nil
	}
	damage, err := d.scan(ctx, f, size, segment.ScanStart{Shard: filepath.Base(filepath.Dir(path)), Segment: id}, 0)
	if err == nil && damage != nil {
		err = fmt.Errorf("%w: %w", ErrDamaged, damage)
	}
	return err
}

func (d *dumper) record(r *segment.Record, id segment.ID, at int64) error {
	if d.json {
		return d.recordJSON(r, id, at)
	}
	t := time.UnixMicro(int64(r.Timestamp)).UTC().Format("2006-01-02T15:04:05.000000Z")
	fmt.Fprintf(d.out, "%d\t%s\t%s\t%d B", r.Offset, t, r.Kind, len(r.Payload))
	switch r.Kind {
	case segment.KindProducerFirst:
		fmt.Fprintf(d.out, "\tproducer=%016x sequence=%d len=%d", r.Producer.ID, r.Producer.Sequence, r.Producer.Len)
	case segment.KindGenerationStart:
		fmt.Fprintf(d.out, "\tgeneration=%d", r.Generation())
	}
	if r.HasPublisher {
		fmt.Fprintf(d.out, "\tpublisher=%s", strconv.Quote(string(r.Publisher)))
	}
	switch r.Kind {
	case segment.KindGenerationStart:
	case segment.KindCommit:
		event, ops, err := segment.CommitBody(r.Payload)
		if err != nil {
			return err
		}
		d.payload(event)
		for op := range ops {
			if op.Delete {
				fmt.Fprintf(d.out, "\tdelete %s", strconv.Quote(string(op.Key)))
				continue
			}
			fmt.Fprintf(d.out, "\tput %s", strconv.Quote(string(op.Key)))
			d.payload(op.Value)
		}
	default:
		d.payload(r.Payload)
	}
	_, err := d.out.WriteString("\n")
	return err
}

// payload prints a payload the way that was asked for.
func (d *dumper) payload(b []byte) {
	cut := ""
	if d.o.payload != "full" && len(b) > d.o.width {
		b, cut = b[:d.o.width], "..."
	}
	switch {
	case d.o.payload == "none":
	case d.o.payload == "hex", d.o.payload == "text" && !printable(b):
		fmt.Fprintf(d.out, "\t%x%s", b, cut)
	default:
		fmt.Fprintf(d.out, "\t%s%s", strconv.Quote(string(b)), cut)
	}
}

// printable says whether b reads as text; the last rune may be cut.
func printable(b []byte) bool {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 && i+utf8.UTFMax <= len(b) || r < ' ' && r != '\n' && r != '\t' {
			return false
		}
		i += n
	}
	return true
}

func (d *dumper) recordJSON(r *segment.Record, id segment.ID, at int64) error {
	line := recordLine{
		Offset: r.Offset, Micros: r.Timestamp, Kind: r.Kind.String(), Segment: id, Position: at, Size: r.Size,
		Checksum: fmt.Sprintf("%08x", r.Checksum), Gen: uint64(r.Generation()),
	}
	if r.Kind == segment.KindProducerFirst {
		line.Producer = &producerLine{ID: fmt.Sprintf("%016x", r.Producer.ID), Sequence: r.Producer.Sequence, Len: r.Producer.Len}
	}
	if r.HasPublisher {
		line.Publisher = new(string(r.Publisher))
	}
	if d.o.payload != "none" {
		line.Payload = r.Payload
		if r.Kind == segment.KindCommit {
			event, ops, err := segment.CommitBody(r.Payload)
			if err != nil {
				return err
			}
			line.Event = event
			for op := range ops {
				if op.Delete {
					line.Ops = append(line.Ops, opLine{Op: "delete", Key: op.Key})
				} else {
					line.Ops = append(line.Ops, opLine{Op: "put", Key: op.Key, Value: op.Value})
				}
			}
		}
	}
	return printJSON(d.out, line)
}

// cutName takes apart the name of a file under lost/ that holds bytes cut from a segment:
// the segment's name, "from" and a position, and perhaps more.
func cutName(name string) (id segment.ID, from int64, ok bool) {
	head, rest, found := strings.Cut(name, ".from-")
	class, id := segment.ParseName(head)
	if !found || class != segment.NameSegment {
		return 0, 0, false
	}
	number, _, _ := strings.Cut(rest, ".")
	from, err := strconv.ParseInt(number, 10, 64)
	return id, from, err == nil && from >= 0
}

// behindHeader reads a file as if a segment header were before it.
type behindHeader struct{ io.ReaderAt }

func (b behindHeader) ReadAt(p []byte, at int64) (int, error) {
	return b.ReaderAt.ReadAt(p, at-segment.HeaderSize)
}

// cut prints the records of bytes that were cut from a segment, and says what is no
// record.
func (d *dumper) cut(ctx context.Context, path string, id segment.ID, from int64) (err error) {
	f, err := d.fsys.OpenFile(path, vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	at := segment.ScanStart{Position: segment.HeaderSize, Segment: id}
	head := make([]byte, min(size, segment.RecordHeaderSize))
	if n, err := f.ReadAt(head, 0); n < len(head) {
		return err
	}
	if len(head) == segment.RecordHeaderSize {
		at.Offset = segment.Offset(binary.BigEndian.Uint64(head[4:])) // verified by the scan
	}
	damage, err := d.scan(ctx, behindHeader{f}, size+segment.HeaderSize, at, from-segment.HeaderSize)
	if err != nil || damage == nil || d.json {
		return err
	}
	pos := damage.Position + from - segment.HeaderSize
	_, err = fmt.Fprintf(d.out, "# %d bytes from position %d of segment %d on are no whole record: %s\n", size+from-pos, pos, id, damage.Kind)
	return err
}

// maxSideFile bounds the files beside the segments that dump reads whole.
const maxSideFile = 1 << 30

// file prints one file, told by its name.
func (d *dumper) file(ctx context.Context, path string) error {
	dir, name := filepath.Split(path)
	class, id := segment.ParseName(name)
	if class == segment.NameSegment {
		return d.segment(ctx, path, id, alone)
	}
	if id, from, ok := cutName(name); ok {
		return d.cut(ctx, path, id, from)
	}
	if class == segment.NameUnknown || class == segment.NameLost || class == segment.NameTemporary {
		return fmt.Errorf("%s is no file of a log", path)
	}
	b, err := segment.ReadFile(d.fsys, dir, name, maxSideFile)
	if err != nil {
		return err
	}
	text, value, err := d.side(class, name, b)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if d.json {
		return printJSON(d.out, value)
	}
	_, err = io.WriteString(d.out, text)
	return err
}

func (d *dumper) side(class segment.NameClass, name string, b []byte) (text string, value any, err error) {
	switch class {
	case segment.NameMark:
		m, err := segment.DecodeMark(b)
		return fmt.Sprintf("segment %d, %d bytes synced\n", m.Segment, m.SyncedBytes),
			map[string]any{"segment": m.Segment, "synced_bytes": m.SyncedBytes}, err
	case segment.NameReplica:
		s, err := segment.DecodeReplica(b)
		return fmt.Sprintf("generation %d, committed to %d\n", s.Generation, s.Commit),
			map[string]any{"generation": s.Generation, "commit": s.Commit}, err
	case segment.NameEpochs:
		starts, err := segment.DecodeEpochs(b)
		list := []map[string]any{}
		for _, s := range starts {
			text += fmt.Sprintf("generation %d from offset %d\n", s.Generation, s.Start)
			list = append(list, map[string]any{"generation": s.Generation, "start": s.Start})
		}
		return text, map[string]any{"items": list}, err
	case segment.NameProducers:
		s, err := segment.DecodeProducers(b)
		if err != nil {
			return "", nil, err
		}
		text = fmt.Sprintf("as of offset %d\n", s.AsOf)
		list := []map[string]any{}
		for _, p := range s.Producers {
			text += fmt.Sprintf("producer %016x, last sequence %d, %d batches\n", p.ID, p.LastSequence, len(p.Batches))
			list = append(list, map[string]any{"id": fmt.Sprintf("%016x", p.ID), "last_sequence": p.LastSequence, "batches": len(p.Batches)})
		}
		return text, map[string]any{"as_of": s.AsOf, "items": list}, nil
	case segment.NameIndex:
		return d.index(b)
	}
	return "", nil, fmt.Errorf("%s has no printed form", name)
}

// index prints an index file by itself, without its segment.
func (d *dumper) index(b []byte) (string, any, error) {
	base, err := segment.IndexBase(b)
	if err != nil {
		return "", nil, err
	}
	x, err := segment.DecodeIndex(b, base, 1, maxSegment)
	if err != nil {
		return "", nil, err
	}
	text := fmt.Sprintf("segment from offset %d\n", base)
	list := []map[string]any{}
	for _, e := range x.Entries() {
		text += fmt.Sprintf("offset %d at %d\n", e.Offset, e.Position)
		list = append(list, map[string]any{"offset": e.Offset, "position": e.Position})
	}
	return text, map[string]any{"base": base, "items": list}, nil
}

const maxSegment = 1 << 62 // beyond any segment
