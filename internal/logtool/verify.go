package logtool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

const (
	adviceRestore = "restore the shard from a replica or a backup; what is before the damage, and each other segment by its file, can be read with dump"
	adviceRepair  = "a complete record that fails its check may have been acknowledged: restore from a replica or a backup, or let repair_checksum_tail cut it"
	adviceCut     = "opening the log cuts it"
	adviceLost    = "opening the log cuts it; acknowledged records may be lost, for it is below the durable mark"
	adviceRebuilt = "opening the log rebuilds it"
)

func verifyCommand() *cobra.Command {
	var c command
	var payload int
	cmd := &cobra.Command{
		Use:   "verify --dir DIR",
		Short: "Check every byte of a shard's log, or of every shard below a directory",
		Long: "verify reads every record and says what opening the log would do about what it finds. It changes nothing.\n" +
			"Exit code 1: the log would be refused, or lost something it had acknowledged.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.locked(false, func(func() error) error { return c.verify(cmd, payload) })
		},
	}
	c.flags(cmd, "shard directory, or one above shard directories")
	c.readOnlyFlag(cmd)
	cmd.Flags().IntVar(&payload, "payload-bytes", 0, "also check that each payload is one of this size made by write")
	return cmd
}

func (c *command) verify(cmd *cobra.Command, payload int) error {
	dirs, err := shardDirs(vfs.OS(), c.dir)
	if err != nil {
		return err
	}
	p := startProgress(cmd.ErrOrStderr(), "verified")
	defer p.stop()
	damaged := 0
	for _, dir := range dirs {
		v := verifier{fsys: vfs.OS(), dir: dir, payload: payload, live: c.readOnly, progress: p}
		report, err := v.run(cmd.Context())
		if err != nil {
			return fmt.Errorf("verify %s: %w", dir, err)
		}
		if report.Damaged {
			damaged++
		}
		p.clear()
		if err := c.printReport(cmd, report); err != nil {
			return err
		}
	}
	switch {
	case damaged > 0 && len(dirs) > 1:
		return fmt.Errorf("%w: %d of %d shards below %s", ErrDamaged, damaged, len(dirs), c.dir)
	case damaged > 0:
		return fmt.Errorf("%w: %s", ErrDamaged, c.dir)
	}
	return nil
}

func (c *command) printReport(cmd *cobra.Command, r *Report) error {
	out := cmd.OutOrStdout()
	if c.json {
		return printJSON(out, r)
	}
	for i := range r.Findings {
		fmt.Fprintln(out, r.Findings[i].String())
	}
	state := "intact"
	if r.Damaged {
		state = "damaged"
	}
	_, err := fmt.Fprintf(out, "%s: %s: %d records in %d segments, offsets %d to %d (exclusive), %s\n",
		r.Dir, state, r.Records, r.Segments, r.Head, r.Next, bytesText(r.Bytes))
	return err
}

// Names of a broker's own in and above shard directories.
const (
	incarnationName = "incarnation" // of the stream a directory belongs to
	groupsDir       = "groups"      // logs of the groups of a shard
	trashDir        = "trash"       // deleted streams on their way out
	searchDepth     = 5
)

// shardDirs are the directories at or below dir that hold a log.
func shardDirs(fsys vfs.FS, dir string) ([]string, error) {
	found, err := findShards(fsys, dir, searchDepth)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no log in %s: neither it nor a directory below holds segments (%s)", dir, segment.SegmentName(0))
	}
	return found, nil
}

func findShards(fsys vfs.FS, dir string, depth int) ([]string, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var here, below []string
	for _, e := range entries {
		class, _ := segment.ParseName(e.Name())
		switch {
		case !e.IsDir():
			if class == segment.NameSegment || class == segment.NameIndex || class == segment.NameReplica {
				here = []string{dir}
			}
		case class != segment.NameLost && e.Name() != trashDir && depth > 0:
			more, err := findShards(fsys, filepath.Join(dir, e.Name()), depth-1)
			if err != nil {
				return nil, err
			}
			below = append(below, more...)
		}
	}
	return append(here, below...), nil
}

// verifier checks one shard's directory.
type verifier struct {
	fsys     vfs.FS
	dir      string
	payload  int
	live     bool // somebody may be writing
	progress *progress
	check    func(*segment.Record) error // what its reader asks of each record; nil: nothing

	report  Report
	mark    segment.Mark
	hasMark bool
	end     segment.Mark              // where the good records of the newest readable segment end
	starts  []segment.GenerationStart // as the records have it
	listing listing
}

// listing is a directory by class of name.
type listing struct {
	segments []segment.ID // ascending
	indexes  map[segment.ID]bool
	side     map[segment.NameClass]bool
	strays   []string
	left     []string // temporaries
}

func list(fsys vfs.FS, dir string) (listing, error) {
	l := listing{indexes: map[segment.ID]bool{}, side: map[segment.NameClass]bool{}}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return l, err
	}
	for _, e := range entries {
		class, id := segment.ParseName(e.Name())
		if e.IsDir() != (class == segment.NameLost) {
			class = segment.NameUnknown
		}
		switch class {
		case segment.NameSegment:
			l.segments = append(l.segments, id)
		case segment.NameIndex:
			l.indexes[id] = true
		case segment.NameTemporary:
			l.left = append(l.left, e.Name())
		case segment.NameUnknown:
			switch e.Name() {
			case incarnationName, segment.TempName(incarnationName), groupsDir, lockName:
			default:
				l.strays = append(l.strays, e.Name())
			}
		default:
			l.side[class] = true
		}
	}
	slices.Sort(l.segments)
	return l, nil
}

func (v *verifier) run(ctx context.Context) (*Report, error) {
	v.report = Report{Dir: v.dir, Shard: filepath.Base(v.dir), Findings: []Finding{}}
	var err error
	if v.listing, err = list(v.fsys, v.dir); err != nil {
		return nil, err
	}
	if v.mark, v.hasMark, err = segment.ReadMark(v.fsys, v.dir); err != nil {
		return nil, err
	}
	switch {
	case v.hasMark:
	case v.listing.side[segment.NameMark]:
		v.report.inFile(Note, segment.MarkName, segment.SideFileDamaged.String(), "", "it is taken as absent, and written anew")
	case len(v.listing.segments) > 1:
		v.report.inFile(Note, segment.MarkName, "MarkMissing", "a log of several segments has one: it was removed, or this is a copy without it",
			"it is written anew; records missing from the end would not be noticed")
	}
	v.report.Segments = len(v.listing.segments)
	if err := v.segments(ctx); err != nil {
		return nil, err
	}
	if err := v.sideFiles(); err != nil {
		return nil, err
	}
	for id := range v.listing.indexes {
		if !slices.Contains(v.listing.segments, id) {
			v.report.inFile(Note, segment.IndexName(id), "IndexWithoutSegment", "", "opening the log removes it")
		}
	}
	for _, name := range v.listing.left {
		v.report.inFile(Note, name, "Temporary", "a file that was not put into place", "opening the log removes it")
	}
	for _, name := range v.listing.strays {
		v.report.inFile(Note, name, "Stray", "not a file of the log", "it is left alone")
	}
	return &v.report, nil
}

// segments checks all segments and that they meet.
func (v *verifier) segments(ctx context.Context) error {
	ids := v.listing.segments
	known := false // v.report.Next is what the next segment must begin at
	for i, id := range ids {
		found, err := v.segment(ctx, i)
		if err != nil {
			return fmt.Errorf("%s: %w", segment.SegmentName(id), err)
		}
		if !found.readable {
			known = known && found.passable
			continue
		}
		base := found.header.BaseOffset
		if i == 0 || v.report.Records == 0 && !known {
			v.report.Head = base
		}
		if known && base != v.report.Next {
			v.report.atRecord(Damage, &segment.Corruption{
				Segment: id, Position: 8, Kind: segment.OffsetOutOfOrder, Offset: v.report.Next,
				Detail: fmt.Sprintf("the segment begins at offset %d, the one before ends at %d", base, v.report.Next),
			}, adviceRestore)
		}
		v.report.Records += found.records
		v.report.Next = found.next
		known = found.whole
	}
	if v.hasMark && v.end.Before(v.mark) && !v.report.Damaged {
		v.report.atRecord(Damage, &segment.Corruption{
			Segment: v.mark.Segment, Position: v.mark.SyncedBytes, Offset: v.report.Next, Kind: segment.Truncated,
			Detail: fmt.Sprintf("the durable mark is here, the records end at position %d of segment %d", v.end.SyncedBytes, v.end.Segment),
		}, "acknowledged records are missing; restore from a replica or a backup if they matter")
	}
	return nil
}

// segmentFound is what the next segment is held against.
type segmentFound struct {
	readable bool
	passable bool // not readable, and it does not matter
	whole    bool
	header   segment.Header
	records  int64
	next     segment.Offset
}

func (v *verifier) segment(ctx context.Context, i int) (found segmentFound, err error) {
	id := v.listing.segments[i]
	newest := i == len(v.listing.segments)-1
	f, err := v.fsys.OpenFile(filepath.Join(v.dir, segment.SegmentName(id)), vfs.ReadOnly)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return found, err
	}
	v.report.Bytes += size
	state, header, bad, err := segment.HeaderState(ctx, f, size)
	if err != nil {
		return found, err
	}
	if state != segment.HeaderGood {
		return v.unreadable(ctx, i, state, bad, size)
	}
	found.readable, found.header = true, header

	x := segment.NewIndex(header.BaseOffset, segment.DefaultIndexSpacing)
	wrong := int64(0)
	from := segment.ScanStart{Shard: v.report.Shard, Segment: id, Index: x}
	last := int64(0)
	res, err := segment.Scan(ctx, f, size, from, func(r *segment.Record) error {
		if v.check != nil {
			if err := v.check(r); err != nil {
				return err
			}
		}
		if r.Kind == segment.KindGenerationStart {
			v.starts = append(v.starts, segment.GenerationStart{Generation: r.Generation(), Start: r.Offset})
		}
		if v.payload > 0 && !isPattern(r.Payload, v.payload) {
			if wrong == 0 {
				v.report.add(Finding{
					Severity: Damage, File: segment.SegmentName(id), Segment: &id, Offset: new(r.Offset), Kind: "Payload",
					Detail: fmt.Sprintf("not a payload of %d bytes made by write", v.payload),
				})
			}
			wrong++
		}
		if last += int64(r.Size); last >= progressStep {
			v.progress.add(last)
			last = 0
		}
		return nil
	})
	if err != nil {
		return found, err
	}
	v.progress.add(last)
	if wrong > 1 {
		v.report.inFile(Damage, segment.SegmentName(id), "Payload", fmt.Sprintf("%d records hold another payload", wrong), "")
	}
	found.records, found.next, found.whole = res.Records, res.Next, res.Damage == nil
	if res.Damage != nil {
		if err := v.damage(ctx, f, size, res, i, &found); err != nil {
			return found, err
		}
	}
	v.end = segment.Mark{Segment: id, SyncedBytes: res.End}
	if !found.whole {
		return found, nil
	}
	return found, v.index(id, x, newest, size)
}

// unreadable judges a segment without a header.
func (v *verifier) unreadable(ctx context.Context, i int, state segment.HeaderFinding, bad *segment.Corruption, size int64) (segmentFound, error) {
	id := v.listing.segments[i]
	newest := i == len(v.listing.segments)-1
	c := &segment.Corruption{Segment: id, Kind: segment.HeaderTruncated, Detail: fmt.Sprintf("%d bytes, and no segment header", size)}
	if bad != nil {
		c.Kind, c.Detail = bad.Kind, bad.Detail
	}
	switch {
	case state == segment.HeaderBad:
		v.report.atRecord(Damage, c, adviceRestore)
	case newest && v.hasMark && v.mark.Covers(id, 0):
		c.Detail += "; the durable mark says there was more"
		v.report.atRecord(Damage, c, adviceRestore)
	case newest:
		v.report.atRecord(Note, c, "an unfinished roll: opening the log removes it")
		return segmentFound{passable: true}, nil
	case state == segment.HeaderShort && i > 0:
		v.report.atRecord(Note, c, "if the segments around it meet, opening the log removes it")
		return segmentFound{passable: true}, nil
	default:
		v.report.atRecord(Damage, c, adviceRestore)
	}
	return segmentFound{}, ctx.Err()
}

// damage judges what ended a scan by the table of verdicts.
func (v *verifier) damage(ctx context.Context, f vfs.File, size int64, res segment.ScanResult, i int, found *segmentFound) error {
	c := res.Damage
	newest := i == len(v.listing.segments)-1
	tail, err := segment.ClassifyTail(ctx, f, size, res)
	if err != nil {
		return err
	}
	below := v.hasMark && v.mark.Covers(c.Segment, c.Position)
	switch {
	case v.live && newest && tail != segment.TailInterior:
		v.report.atRecord(Note, c, "the broker may be writing this just now")
	case newest && (tail == segment.TailTorn || tail == segment.TailZero):
		c.Detail += fmt.Sprintf("; %s tail of %d bytes", tail, size-c.Position)
		if below {
			v.report.atRecord(Damage, c, adviceLost)
		} else {
			v.report.atRecord(Warning, c, adviceCut)
		}
	case !newest && tail == segment.TailZero:
		next, err := v.baseOf(ctx, i+1)
		if err != nil {
			return err
		}
		if next != res.Next {
			v.report.atRecord(Damage, c, adviceRestore)
			break
		}
		found.whole = true
		c.Detail += fmt.Sprintf("; %d zero bytes after the last record of a sealed segment", size-c.Position)
		v.report.atRecord(Note, c, "opening the log trims them")
	case newest && tail == segment.TailDamaged:
		advice := adviceRepair
		if !below && v.hasMark {
			advice += "; it is past the durable mark, so it is cut if the machine has restarted since"
		}
		v.report.atRecord(Damage, c, advice)
	default:
		if tail == segment.TailInterior {
			c.Detail += "; good records follow it"
		}
		v.report.atRecord(Damage, c, adviceRestore)
	}
	return nil
}

// baseOf is the base offset of the i-th segment; the greatest offset if it has none.
func (v *verifier) baseOf(ctx context.Context, i int) (base segment.Offset, err error) {
	f, err := v.fsys.OpenFile(filepath.Join(v.dir, segment.SegmentName(v.listing.segments[i])), vfs.ReadOnly)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	state, h, _, err := segment.HeaderState(ctx, f, size)
	if err != nil || state != segment.HeaderGood {
		return ^segment.Offset(0), err
	}
	return h.BaseOffset, nil
}

// index compares the index file with what the segment says. The newest segment's is
// written when it is sealed, and is not looked at before.
func (v *verifier) index(id segment.ID, x *segment.Index, newest bool, size int64) error {
	name := segment.IndexName(id)
	if !v.listing.indexes[id] {
		if !newest {
			v.report.inFile(Note, name, "IndexMissing", "", adviceRebuilt)
		}
		return nil
	}
	b, err := segment.ReadFile(v.fsys, v.dir, name, int64(x.EncodedSize())+size)
	if err != nil {
		if c, ok := errors.AsType[*segment.Corruption](err); ok {
			v.report.inFile(Note, name, segment.IndexDamaged.String(), c.Detail, adviceRebuilt)
			return nil
		}
		return err
	}
	if newest || bytes.Equal(b, x.AppendTo(nil)) {
		return nil
	}
	detail := "it is not what the segment says, or of another spacing"
	if _, err := segment.DecodeIndex(b, x.Base(), 1, size); err != nil {
		c, _ := errors.AsType[*segment.Corruption](err)
		detail = c.Detail
	}
	v.report.inFile(Note, name, segment.IndexDamaged.String(), detail, adviceRebuilt)
	return nil
}

// sideFiles checks the files beside the segments.
func (v *verifier) sideFiles() error {
	if _, err := segment.ReadReplica(v.fsys, v.dir); err != nil {
		c, ok := errors.AsType[*segment.Corruption](err)
		if !ok {
			return err
		}
		v.report.inFile(Damage, segment.ReplicaName, c.Kind.String(), c.Detail,
			"the log is refused: what the replica promised is not known; restore the file, or make the replica anew from its leader")
	}
	if v.listing.side[segment.NameEpochs] {
		starts, err := segment.ReadEpochs(v.fsys, v.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// The file may reach further back than the oldest record.
		if n := len(starts) - len(v.starts); n < 0 || !slices.Equal(starts[n:], v.starts) {
			v.report.inFile(Note, segment.EpochsName, segment.SideFileDamaged.String(), "it is not what the records say", adviceRebuilt)
		}
	}
	if v.listing.side[segment.NameProducers] {
		s, err := segment.ReadProducers(v.fsys, v.dir)
		if err != nil {
			return err
		}
		if s == nil || s.AsOf < v.report.Head || s.AsOf > v.report.Next {
			v.report.inFile(Note, segment.ProducersName, segment.SideFileDamaged.String(), "damaged, or not of these records", "it is made anew from the records")
		}
	}
	return nil
}
