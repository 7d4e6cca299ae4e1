package logtool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// Source is a shard's directory, of this program or of the reference broker, that was
// verified and whose records are read. Nothing in it is changed.
type Source struct {
	Report
	dir      string
	segments []segment.ID
	lock     io.Closer
}

// OpenSource verifies the log in dir, and shows each record to check, which refuses what
// its reader could not use. A log with damage is refused: the error names file, position,
// offset and what to do, and matches ErrDamaged. An end that was never finished is no
// damage and is left out; Findings says so. Close has to be called.
func OpenSource(ctx context.Context, dir string, check func(*segment.Record) error) (_ *Source, err error) {
	fsys := vfs.OS()
	if info, err := fsys.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is no directory", dir)
	}
	s := &Source{dir: dir}
	if s.lock, err = lockRoot(fsys, dir, false); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()
	p := startProgress(io.Discard, "verified")
	defer p.stop()
	v := verifier{fsys: fsys, dir: dir, progress: p, check: check}
	report, err := v.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("verify %s: %w", dir, err)
	}
	if len(v.listing.segments) == 0 {
		below, err := findShards(fsys, dir, searchDepth)
		if err == nil && len(below) > 0 {
			return nil, fmt.Errorf("%s holds no segments itself; name one of the shards below it, as %s", dir, below[0])
		}
		return nil, fmt.Errorf("%s holds no segments (%s)", dir, segment.SegmentName(0))
	}
	for i := range report.Findings {
		if f := &report.Findings[i]; f.Severity == Damage {
			return nil, fmt.Errorf("%w: %s: %s", ErrDamaged, dir, f)
		}
	}
	s.Report, s.segments = *report, v.listing.segments
	return s, nil
}

// Close gives the directory back.
func (s *Source) Close() error { return s.lock.Close() }

// Read visits the records from from on, in order. A record is valid during its visit.
// segment.ErrStop ends the reading.
func (s *Source) Read(ctx context.Context, from segment.Offset, visit func(*segment.Record) error) error {
	next := s.Head
	stopped := false
	for _, id := range s.segments {
		err := s.segment(ctx, id, func(r *segment.Record) error {
			if r.Offset != next {
				return fmt.Errorf("%s was changed while it was read: offset %d where %d should be", s.dir, r.Offset, next)
			}
			next++
			if r.Offset < from {
				return nil
			}
			err := visit(r)
			stopped = errors.Is(err, segment.ErrStop)
			return err
		})
		if err != nil || stopped {
			return err
		}
	}
	if next != s.Next {
		return fmt.Errorf("%s was changed while it was read: it ends at offset %d, and %d was verified", s.dir, next, s.Next)
	}
	return nil
}

func (s *Source) segment(ctx context.Context, id segment.ID, visit func(*segment.Record) error) (err error) {
	f, err := vfs.OS().OpenFile(filepath.Join(s.dir, segment.SegmentName(id)), vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	state, _, _, err := segment.HeaderState(ctx, f, size)
	if err != nil || state != segment.HeaderGood {
		return err // what an unfinished roll left: it was verified that nothing is missing
	}
	// Where the records end was judged when it was opened, and Read counts them.
	_, err = segment.Scan(ctx, f, size, segment.ScanStart{Shard: s.Shard, Segment: id}, visit)
	return err
}
