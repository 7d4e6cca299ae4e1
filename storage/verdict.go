package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// The verdict: what recovery may do about what it finds. The order of the looks below is
// the order of the table in docs/formats; the first that fits decides. One thing is added
// to it: on a restarted machine a segment behind the mark's whose header is neither
// intact nor of another version is an unfinished roll too, since its header is flushed
// only after it was taken into use.

// examine reaches the verdict. It changes nothing.
func (r *recovery) examine() error {
	for _, s := range r.segs {
		if err := r.lookAtHeader(s); err != nil {
			return err
		}
	}
	r.dropUnfinishedRolls()
	if err := r.dropEmptyBetween(); err != nil {
		return err
	}
	r.endBeforeLostHeader()
	for _, s := range r.segs {
		if s.state != segment.HeaderGood {
			return r.headerDamage(s)
		}
		r.total += s.size
	}
	for i := range r.segs {
		if err := r.check(i); err != nil {
			return err
		}
		if r.cut != nil {
			break
		}
	}
	r.missing()
	if r.report.DurableGone && r.l.opt.RefuseGone {
		return &DamagedError{Dir: r.l.dir, Advice: "nothing was changed; restore the log from a copy", Cause: errors.New(r.report.Lost)}
	}
	if r.cut != nil {
		r.lost = append(append([]*foundSegment(nil), r.segs[r.cut.move:]...), r.lost...)
		r.segs = r.segs[:r.cut.move]
	}
	r.orphans()
	return r.collectGenerations()
}

func (r *recovery) lookAtHeader(s *foundSegment) error {
	return r.with(s, vfs.ReadOnly, func(f vfs.File) error {
		size, err := f.Size()
		if err != nil {
			return err
		}
		s.size = size
		s.state, s.header, s.damage, err = segment.HeaderState(r.ctx, f, size)
		return err
	})
}

func (r *recovery) headerDamage(s *foundSegment) error {
	c := s.damage
	if c == nil {
		c = &segment.Corruption{Kind: segment.HeaderTruncated, Detail: fmt.Sprintf("%d bytes of a header of %d", s.size, segment.HeaderSize)}
		if s.state == segment.HeaderZero {
			c.Kind, c.Detail = segment.HeaderMagic, "the header is zero"
		}
	}
	c.Shard, c.Segment = r.l.shard, s.id
	return c
}

// below says whether a byte is below the durable mark, past whether it is past it; with
// no mark it is neither.
func (r *recovery) below(id SegmentID, pos int64) bool {
	return r.hasMark && r.mark.Covers(id, pos)
}

func (r *recovery) past(id SegmentID, pos int64) bool {
	return r.hasMark && !r.mark.Covers(id, pos)
}

// dropUnfinishedRolls takes segments off the end that were made and never came into use.
func (r *recovery) dropUnfinishedRolls() {
	for len(r.segs) > 0 {
		s := r.segs[len(r.segs)-1]
		garbage := s.state == segment.HeaderBad && r.headerNeverFlushed(s)
		switch {
		case r.below(s.id, 0):
			return
		case s.state == segment.HeaderShort, s.state == segment.HeaderZero:
			r.remove = append(r.remove, segment.SegmentName(s.id))
		case garbage:
			r.lost = append(r.lost, s)
		default:
			return
		}
		r.segs = r.segs[:len(r.segs)-1]
	}
}

// headerNeverFlushed says whether what stands for the header of s can be what a power cut
// left of one that was written and not flushed.
func (r *recovery) headerNeverFlushed(s *foundSegment) bool {
	if !r.restarted || !r.past(s.id, 0) {
		return false
	}
	return s.state != segment.HeaderBad || s.damage.Kind == segment.HeaderChecksum || s.damage.Kind == segment.HeaderMagic
}

// endBeforeLostHeader ends the log before a segment whose header the power cut took,
// though segments behind it have theirs: nothing flushed them in order.
func (r *recovery) endBeforeLostHeader() {
	for i, s := range r.segs {
		if i == 0 || s.state == segment.HeaderGood {
			continue
		}
		if r.headerNeverFlushed(s) {
			r.lost = append(append([]*foundSegment(nil), r.segs[i:]...), r.lost...)
			r.segs = r.segs[:i]
		}
		return
	}
}

// dropEmptyBetween takes out files shorter than a header between segments that meet.
func (r *recovery) dropEmptyBetween() error {
	for i := 1; i < len(r.segs)-1; i++ {
		s := r.segs[i]
		if s.state != segment.HeaderShort || r.segs[i-1].state != segment.HeaderGood || r.segs[i+1].state != segment.HeaderGood {
			continue
		}
		before := r.segs[i-1]
		if err := r.with(before, vfs.ReadOnly, func(f vfs.File) error { return r.scanWhole(f, before) }); err != nil {
			return err
		}
		if before.res.Damage != nil || before.res.Next != r.segs[i+1].header.BaseOffset {
			continue
		}
		r.remove = append(r.remove, segment.SegmentName(s.id))
		r.segs = append(r.segs[:i], r.segs[i+1:]...)
		i--
	}
	return nil
}

// check looks at segment i and decides about what is wrong with it.
func (r *recovery) check(i int) error {
	s := r.segs[i]
	newest := i == len(r.segs)-1
	return r.with(s, vfs.ReadOnly, func(f vfs.File) error {
		if err := r.scanSegment(f, s, newest); err != nil {
			return err
		}
		if s.size > segment.HeaderSize && s.res.Next > s.header.BaseOffset {
			var b [segment.RecordHeaderSize]byte
			if _, err := f.ReadAt(b[:], segment.HeaderSize); err != nil {
				return err
			}
			s.first = Micros(beUint64(b[12:]))
		}
		s.last = max(s.first, s.res.MaxTimestamp)
		tail, err := segment.ClassifyTail(r.ctx, f, s.size, s.res)
		if err != nil {
			return err
		}
		if newest {
			return r.judgeNewest(i, tail)
		}
		if err := r.judgeSealed(i, tail); err != nil {
			return err
		}
		if r.cut == nil && s.rebuilt == "" && (!s.full || r.sameIndex(s)) {
			s.index = nil
		}
		return nil
	})
}

func (r *recovery) judgeNewest(i int, tail segment.Tail) error {
	s := r.segs[i]
	d := s.res.Damage
	switch {
	case tail == segment.TailClean:
		return nil
	case tail == segment.TailTorn, tail == segment.TailZero:
		r.cut = &cutPlan{at: i, pos: s.res.End, move: len(r.segs), reason: tail.String() + " tail"}
	case r.restarted && r.past(s.id, d.Position):
		r.cut = &cutPlan{at: i, pos: s.res.End, move: len(r.segs), reason: "unfinished write past the durable mark: " + d.Kind.String()}
		r.cut.lostAck = true
	case tail == segment.TailDamaged:
		r.tailOnly = true
		if !r.l.opt.RepairChecksumTail {
			return d
		}
		r.cut = &cutPlan{at: i, pos: s.res.End, move: len(r.segs), reason: "repaired tail: " + d.Kind.String(), lostAck: true}
	default:
		return d
	}
	return nil
}

func (r *recovery) judgeSealed(i int, tail segment.Tail) error {
	s, next := r.segs[i], r.segs[i+1]
	d := s.res.Damage
	meets := s.res.Next == next.header.BaseOffset
	switch {
	case d == nil && meets:
		return nil
	case tail == segment.TailZero && meets:
		s.trim = s.res.End
		return nil
	}
	if d == nil {
		d = &segment.Corruption{
			Shard: r.l.shard, Segment: next.id, Offset: s.res.Next, Kind: segment.OffsetOutOfOrder,
			Detail: fmt.Sprintf("segment %d ends before offset %d, segment %d begins at %d", s.id, s.res.Next, next.id, next.header.BaseOffset),
		}
	}
	if r.restarted && r.past(s.id, s.res.End) {
		r.cut = &cutPlan{at: i, pos: s.res.End, move: i + 1, reason: "unfinished write past the durable mark: " + d.Kind.String(), lostAck: true}
		return nil
	}
	return d
}

// scanSegment checks as much of s as has to be: all of it, or the records after the last
// index entry.
func (r *recovery) scanSegment(f vfs.File, s *foundSegment, newest bool) error {
	if s.full {
		return nil
	}
	if newest || r.l.opt.VerifyAllOnOpen || r.restarted && r.hasMark && s.id >= r.mark.Segment {
		return r.scanWhole(f, s)
	}
	x, why := r.readIndex(s)
	if x == nil {
		s.rebuilt = why
		return r.scanWhole(f, s)
	}
	from := segment.ScanStart{Position: segment.HeaderSize, Offset: s.header.BaseOffset, Version: s.header.Version, Index: x}
	if e, ok := x.Last(); ok {
		from.Position, from.Offset = e.Position, e.Offset
	}
	entries := x.Len()
	res, err := r.scan(f, s, from)
	if err != nil {
		return err
	}
	if res.Damage != nil && res.Damage.Position == from.Position {
		// The index may be what is wrong.
		s.rebuilt = "its last entry leads to no record"
		s.gens = nil
		return r.scanWhole(f, s)
	}
	if x.Len() != entries {
		s.rebuilt = "it lacks its last entries"
	}
	res.Header = s.header
	s.res, s.index = res, x
	return nil
}

func (r *recovery) scanWhole(f vfs.File, s *foundSegment) error {
	s.index = segment.NewIndex(s.header.BaseOffset, r.l.opt.IndexSpacing)
	s.gens = nil
	res, err := r.scan(f, s, segment.ScanStart{Index: s.index})
	if err != nil {
		return err
	}
	s.res, s.full = res, true
	if res.Header.Version == 0 {
		// The header was good a moment ago.
		return errors.Join(fs.ErrInvalid, res.Damage)
	}
	return nil
}

// readIndex reads the index of s; nil and the reason when it cannot be used.
func (r *recovery) readIndex(s *foundSegment) (*segment.Index, string) {
	if !r.indexes[s.id] {
		return nil, IndexMissing
	}
	b, err := segment.ReadFile(r.l.fs, r.l.dir, segment.IndexName(s.id), indexFileLimit(s.size))
	if err != nil {
		return nil, err.Error()
	}
	x, err := segment.DecodeIndex(b, s.header.BaseOffset, r.l.opt.IndexSpacing, s.size)
	if err != nil {
		return nil, err.Error()
	}
	if x.Len() == 0 && s.size >= segment.HeaderSize+segment.RecordHeaderSize {
		return nil, "empty"
	}
	return x, ""
}

// indexFileLimit is the most bytes the index of a segment can have.
func indexFileLimit(segmentSize int64) int64 {
	return 24 + 16*((segmentSize-segment.HeaderSize)/segment.RecordHeaderSize+1)
}

// sameIndex says whether the index file of s holds what x encodes to.
func (r *recovery) sameIndex(s *foundSegment) bool {
	if !r.indexes[s.id] {
		return false
	}
	want := s.index.AppendTo(nil)
	got, err := segment.ReadFile(r.l.fs, r.l.dir, segment.IndexName(s.id), int64(len(want)))
	return err == nil && bytes.Equal(got, want)
}

// missing notes when bytes below the mark are not there, or the mark is not.
func (r *recovery) missing() {
	end, id := int64(0), SegmentID(0)
	switch {
	case r.cut != nil:
		id, end = r.segs[r.cut.at].id, r.cut.pos
	case len(r.segs) > 0:
		s := r.segs[len(r.segs)-1]
		id, end = s.id, s.res.End
	}
	r.report.MarkMissing = !r.hasMark && len(r.segs) > 1
	gone := r.hasMark && (r.mark.Segment > id || r.mark.Segment == id && r.mark.SyncedBytes > end)
	switch {
	case gone:
		r.report.MayHaveLost, r.report.DurableGone = true, true
		r.report.Lost = fmt.Sprintf("segment %d was on the device up to byte %d, the log ends in segment %d at byte %d: acknowledged records may be gone",
			r.mark.Segment, r.mark.SyncedBytes, id, end)
	case r.cut != nil && r.cut.lostAck, r.cut == nil && len(r.lost) > 0:
		r.report.MayHaveLost = r.l.opt.Fsync != OnCommit || r.l.opt.RepairChecksumTail
		r.report.Lost = "bytes that were never reported durable were cut: " + survives(r.l.opt.Fsync)
	}
	if r.cut != nil {
		r.cut.lostAck = r.report.MayHaveLost
	}
}

// survives says which acknowledged records may have been past the durable mark.
func survives(m FsyncMode) string {
	switch m {
	case OnCommit:
		return "under on_commit nothing that was acknowledged was among them"
	case Periodic:
		return "records acknowledged within the last flush interval may have been among them"
	}
	return "records acknowledged since the last seal or close may have been among them"
}

// orphans finds indexes without a segment.
func (r *recovery) orphans() {
	have := make(map[SegmentID]bool, len(r.segs))
	for _, s := range r.segs {
		have[s.id] = true
	}
	for id := range r.indexes {
		if !have[id] {
			r.remove = append(r.remove, segment.IndexName(id))
		}
	}
}

// collectGenerations gathers the generation starts. A segment that was scanned whole
// says its own; the others' are in epochs if every one it names there is real, for an
// index is written after them. Else those segments are scanned.
func (r *recovery) collectGenerations() error {
	for _, g := range r.epochs {
		if len(r.segs) > 0 && g.Start < r.segs[0].header.BaseOffset {
			r.gens = append(r.gens, g) // its record was trimmed
		}
	}
	for _, s := range r.segs {
		if s.full || s.header.Version < segment.VersionGeneration {
			r.gens = append(r.gens, s.gens...)
			continue
		}
		known, err := r.fromEpochs(s)
		if err != nil {
			return err
		}
		if !known {
			x, res := s.index, s.res
			if err := r.with(s, vfs.ReadOnly, func(f vfs.File) error { return r.scanWhole(f, s) }); err != nil {
				return err
			}
			s.index, s.res = x, res
		}
		r.gens = append(r.gens, s.gens...)
	}
	return nil
}

// fromEpochs takes the generations of s from epochs, if they are there and real.
func (r *recovery) fromEpochs(s *foundSegment) (bool, error) {
	if !r.epochsOK || s.rebuilt != "" {
		return false, nil
	}
	var gens []GenerationStart
	for _, g := range r.epochs {
		if g.Start >= s.header.BaseOffset && g.Start < s.res.Next {
			gens = append(gens, g)
		}
	}
	// The records behind the last index entry were scanned: what begins there was written
	// after epochs, if epochs lacks it.
	for _, g := range s.gens {
		if !slices.Contains(gens, g) {
			return false, nil
		}
	}
	x := s.index
	if x == nil && len(gens) > 0 {
		if x, _ = r.readIndex(s); x == nil {
			return false, nil
		}
	}
	for _, g := range gens {
		real, err := r.isGeneration(s, x, g)
		if err != nil || !real {
			return false, err
		}
	}
	s.gens = gens
	return true, nil
}

func (r *recovery) isGeneration(s *foundSegment, x *segment.Index, g GenerationStart) (real bool, err error) {
	e, ok := x.Lookup(g.Start)
	if !ok {
		return false, nil
	}
	err = r.with(s, vfs.ReadOnly, func(f vfs.File) error {
		var buf segment.ReadBuffer
		_, err := segment.ReadInto(r.ctx, f, segment.ScanStart{Shard: r.l.shard, Segment: s.id, Position: e.Position, Offset: e.Offset, Version: s.header.Version},
			segment.ReadLimits{From: g.Start, End: g.Start + 1, EndPosition: s.size, MaxBytes: 64, MaxRecords: 1}, &buf)
		var c *segment.Corruption
		if errors.As(err, &c) {
			return nil
		}
		real = err == nil && len(buf.Records) == 1 && buf.Records[0].Kind == KindGenerationStart && buf.Records[0].Generation() == g.Generation
		return err
	})
	return real, err
}
