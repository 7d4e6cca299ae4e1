package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// RecoveryReport says what Open found and did.
type RecoveryReport struct {
	Duration       time.Duration
	Created        bool   // the directory held no log
	Segments       int    // that the log has now
	Head, Next     Offset // [Head, Next) is readable
	ScannedBytes   int64  // whose records were checked
	RewrittenBytes int64  // written over themselves, because the mark did not vouch for them
	TruncatedBytes int64  // cut from the tail
	MovedSegments  int    // moved to lost/
	IndexesRebuilt int
	Strays         []string // left alone
	// MayHaveLost: acknowledged records may be gone; Lost says why.
	MayHaveLost bool
	// MarkMissing: there are sealed segments and no readable durable.mark, which a log of
	// several segments always has. Somebody removed it, the directory is a copy without it,
	// or it is damaged; what had been on the device is not known, so that DurableGone says nothing.
	MarkMissing bool
	DurableGone bool // bytes that were on the device are not there any more: somebody removed them, or the device lost them
	Lost        string
}

// recovery is one pass over a log's directory: first everything is looked at and a
// verdict reached, without changing a byte; then the verdict is carried out, in an order
// in which a pass that stops half-way is finished by the next.
type recovery struct {
	l         *Log
	ctx       context.Context //nolint:containedctx // lives as long as the pass
	restarted bool
	report    RecoveryReport

	found      []*foundSegment // all there are, ascending
	keep       bool            // files stay open between looks
	segs       []*foundSegment // good, ascending
	remove     []string        // unfinished rolls, orphan indexes, temporaries
	indexes    map[SegmentID]bool
	mark       segment.Mark
	hasMark    bool
	hasLost    bool // there is a lost/
	hasReplica bool
	hasEpochs  bool
	epochs     []GenerationStart
	epochsOK   bool
	gens       []GenerationStart
	total      int64 // bytes of segments, for progress

	cut      *cutPlan
	lost     []*foundSegment // to be moved to lost/, ascending
	tailOnly bool            // the damage is the last record's
	read     int64           // bytes read of total
}

// foundSegment is a segment as recovery sees it.
type foundSegment struct {
	id      SegmentID
	file    vfs.File // while it is kept open
	size    int64
	state   segment.HeaderFinding
	damage  *segment.Corruption // of the header
	header  segment.Header
	res     segment.ScanResult // of the part that was scanned
	full    bool               // res is of the whole segment
	index   *segment.Index     // nil when its file holds it: not all fit into memory at once
	rebuilt string             // why its index has to be written
	trim    int64              // cut its zero tail here, when positive
	first   Micros
	last    Micros // the greatest
	gens    []GenerationStart
}

// cutPlan is where the log is to end, and why.
type cutPlan struct {
	at      int   // index in segs
	pos     int64 // byte to cut at
	move    int   // segs from here on go to lost/
	reason  string
	lostAck bool
}

func (l *Log) recover(ctx context.Context, restarted bool) (*recovery, error) {
	r := &recovery{l: l, ctx: ctx, restarted: restarted, indexes: make(map[SegmentID]bool)}
	if err := r.list(); err != nil {
		return nil, err
	}
	r.keep = len(r.segs) <= keptOpen
	if err := errors.Join(r.examine(), r.closeKept()); err != nil {
		return nil, r.describe(err)
	}
	if err := r.repair(); err != nil {
		return nil, fmt.Errorf("storage: recover %s: %w", l.dir, err)
	}
	return r, nil
}

// keptOpen is how many segments recovery holds open at once.
const keptOpen = 4

// closeKept closes the files that were kept open.
func (r *recovery) closeKept() error {
	var errs []error
	for _, s := range r.found {
		if s.file != nil {
			errs = append(errs, s.file.Close())
			s.file = nil
		}
	}
	r.keep = false
	return errors.Join(errs...)
}

// describe wraps damage with what an operator can do about it.
func (r *recovery) describe(err error) error {
	var c *segment.Corruption
	if !errors.As(err, &c) {
		return fmt.Errorf("storage: recover %s: %w", r.l.dir, err)
	}
	advice := "nothing was changed; restore the segment from a replica or a copy"
	if c.Kind >= segment.Truncated && c.Kind <= segment.RecordBody && r.tailOnly {
		advice = "nothing was changed; repair_checksum_tail cuts the last record, which may have been acknowledged"
	}
	return &DamagedError{Dir: r.l.dir, Advice: advice, Cause: err}
}

// list reads the directory and the side files.
func (r *recovery) list() error {
	l := r.l
	entries, err := l.fs.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := l.fs.MkdirAll(l.dir); err != nil {
			return fmt.Errorf("storage: make %s: %w", l.dir, err)
		}
	} else if err != nil {
		return fmt.Errorf("storage: list %s: %w", l.dir, err)
	}
	for _, e := range entries {
		name := e.Name()
		class, id := segment.ParseName(name)
		if e.IsDir() != (class == segment.NameLost) {
			class = segment.NameUnknown
		}
		switch class {
		case segment.NameLost:
			r.hasLost = true
		case segment.NameReplica:
			r.hasReplica = true
		case segment.NameEpochs:
			r.hasEpochs = true
		case segment.NameSegment:
			r.segs = append(r.segs, &foundSegment{id: id})
		case segment.NameIndex:
			r.indexes[id] = true
		case segment.NameTemporary:
			r.remove = append(r.remove, name)
		case segment.NameUnknown:
			r.report.Strays = append(r.report.Strays, name)
			if f := l.opt.Events.OnStray; f != nil {
				f(l.shard, name)
			}
		}
	}
	slices.SortFunc(r.segs, func(a, b *foundSegment) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	r.found = slices.Clone(r.segs)
	if r.hasReplica {
		if _, err := segment.ReadReplica(l.fs, l.dir); err != nil {
			return r.describe(err)
		}
	}
	if r.mark, r.hasMark, err = segment.ReadMark(l.fs, l.dir); err != nil {
		return fmt.Errorf("storage: read durable mark: %w", err)
	}
	if !r.hasEpochs {
		return nil
	}
	b, err := segment.ReadFile(l.fs, l.dir, segment.EpochsName, maxEpochsFile)
	var c *segment.Corruption
	switch {
	case err == nil:
		if gens, err := segment.DecodeEpochs(b); err == nil {
			r.epochs, r.epochsOK = gens, true
		}
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &c):
	default:
		return fmt.Errorf("storage: read epochs: %w", err)
	}
	return nil
}

// maxEpochsFile is the size of the largest epochs file: 65,535 entries.
const maxEpochsFile = 12 + 65_535*16

func (r *recovery) open(s *foundSegment, flag vfs.Flag) (vfs.File, error) {
	return r.l.fs.OpenFile(filepath.Join(r.l.dir, segment.SegmentName(s.id)), flag)
}

// with calls f with a segment's file. A log of few segments keeps them open while it is
// examined.
func (r *recovery) with(s *foundSegment, flag vfs.Flag, f func(vfs.File) error) error {
	if flag == vfs.ReadOnly && r.keep {
		if s.file == nil {
			file, err := r.open(s, flag)
			if err != nil {
				return err
			}
			s.file = file
		}
		return f(s.file)
	}
	file, err := r.open(s, flag)
	if err != nil {
		return err
	}
	return errors.Join(f(file), file.Close())
}

// scan scans s from a place on, collecting its generation starts.
func (r *recovery) scan(f vfs.File, s *foundSegment, from segment.ScanStart) (segment.ScanResult, error) {
	from.Shard, from.Segment = r.l.shard, s.id
	var visit func(*Record) error
	if s.header.Version >= segment.VersionGeneration {
		visit = func(rec *Record) error {
			if rec.Kind == KindGenerationStart {
				s.gens = append(s.gens, GenerationStart{Generation: rec.Generation(), Start: rec.Offset})
			}
			return nil
		}
	}
	res, err := segment.Scan(r.ctx, progressReader{f, r}, s.size, from, visit)
	if err != nil {
		return res, err
	}
	r.report.ScannedBytes += res.End - from.Position
	return res, nil
}

// progressReader tells how far recovery is.
type progressReader struct {
	f vfs.File
	r *recovery
}

func (p progressReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := p.f.ReadAt(b, off)
	p.r.read += int64(n)
	if f := p.r.l.opt.Events.OnRecoveryProgress; f != nil {
		f(p.r.l.shard, p.r.read, p.r.total)
	}
	return n, err
}
