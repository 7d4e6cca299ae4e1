package partition

import (
	"context"
	"errors"

	"github.com/felixlog/felix/storage"
)

// ReadRequest asks for records of a durable shard.
type ReadRequest struct {
	From storage.Offset
	// End, with HasEnd, is one past the last offset wanted; at or below From it is an
	// empty page.
	End    storage.Offset
	HasEnd bool
	// MaxRecords and MaxBytes (of payload) bound the page; 0 is the limit.
	MaxRecords int
	MaxBytes   int
}

// ReadPage is a page of records. Payloads are views that hold until it is read into
// again.
type ReadPage struct {
	Records []ReadRecord
	// Next is where to go on; it may pass over offsets without records.
	Next storage.Offset

	page storage.Page
}

// ReadRecord is one record as readers see it.
type ReadRecord struct {
	Offset    storage.Offset
	Timestamp storage.Micros
	Payload   []byte
	Publisher []byte
}

// Read gives the records from r.From on that are readable, without waiting. At the
// tail the page is empty. Errors: *TooOldError, *InFutureError (past the tail),
// ErrMemoryStream, ErrClosed, ErrDeleted, the log's.
func (p *Partition) Read(ctx context.Context, r ReadRequest, page *ReadPage) error {
	page.Records, page.Next = page.Records[:0], r.From
	if p.log == nil {
		return ErrMemoryStream
	}
	if err := p.serving(); err != nil {
		return err
	}
	tail := p.readableNow()
	if r.From > tail {
		return &InFutureError{Requested: r.From, Available: tail}
	}
	if head := p.log.Head(); r.From < head {
		return &TooOldError{Requested: r.From, Available: head}
	}
	end := tail
	if r.HasEnd {
		end = min(end, r.End)
	}
	if r.From >= end {
		return nil
	}
	most := p.o.ReadPageBytes
	if r.MaxBytes > 0 {
		most = min(most, r.MaxBytes)
	}
	err := p.log.Read(ctx, &page.page, storage.ReadRange{From: r.From, End: end, MaxBytes: most, MaxRecords: max(r.MaxRecords, 0)})
	if err != nil {
		if t, ok := errors.AsType[*storage.TrimmedError](err); ok {
			return &TooOldError{Requested: r.From, Available: t.Oldest}
		}
		p.damaged(err)
		return p.closedAs(err)
	}
	for i := range page.page.Records {
		rec := &page.page.Records[i]
		if payload, visible := rec.Visible(); visible {
			page.Records = append(page.Records, ReadRecord{Offset: rec.Offset, Timestamp: rec.Timestamp, Payload: payload, Publisher: rec.Publisher})
		}
	}
	page.Next = page.page.Next
	return nil
}

// OffsetForTime gives the first offset whose record is not older than t; false when
// all readable ones are older. Errors: ErrMemoryStream, ErrClosed, ErrDeleted, the
// log's.
func (p *Partition) OffsetForTime(ctx context.Context, t storage.Micros) (storage.Offset, bool, error) {
	if p.log == nil {
		return 0, false, ErrMemoryStream
	}
	if err := p.serving(); err != nil {
		return 0, false, err
	}
	at, found, err := p.log.OffsetForTime(ctx, t)
	if err != nil {
		return 0, false, p.closedAs(err)
	}
	return at, found && at < p.readableNow(), nil
}
