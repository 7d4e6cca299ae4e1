package logtool

import (
	"fmt"
	"strings"

	"github.com/felixlog/felix/storage/segment"
)

// Severity says how much a finding matters.
type Severity string

const (
	// Note: nothing is wrong, or opening the log puts it right without loss.
	Note Severity = "note"
	// Warning: opening the log cuts what was never finished.
	Warning Severity = "warning"
	// Damage: the log is refused, or lost what it had acknowledged.
	Damage Severity = "damage"
)

// Finding is one thing verify found: what, where, and what to do.
type Finding struct {
	Severity Severity        `json:"severity"`
	Shard    string          `json:"shard"`
	File     string          `json:"file"`
	Segment  *segment.ID     `json:"segment,omitempty"`
	Position *int64          `json:"position,omitempty"`
	Offset   *segment.Offset `json:"offset,omitempty"`
	Kind     string          `json:"kind"`
	Detail   string          `json:"detail,omitempty"`
	Advice   string          `json:"advice,omitempty"`
}

// String is the finding on one line.
func (f *Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: shard %s: %s", f.Severity, f.Shard, f.File)
	if f.Position != nil {
		fmt.Fprintf(&b, ": position %d", *f.Position)
	}
	if f.Offset != nil {
		fmt.Fprintf(&b, ": offset %d", *f.Offset)
	}
	b.WriteString(": " + f.Kind)
	if f.Detail != "" {
		b.WriteString(": " + f.Detail)
	}
	if f.Advice != "" {
		b.WriteString("; " + f.Advice)
	}
	return b.String()
}

// Report is what verify found in one shard's directory.
type Report struct {
	Dir      string         `json:"dir"`
	Shard    string         `json:"shard"`
	Segments int            `json:"segments"`
	Records  int64          `json:"records"`
	Bytes    int64          `json:"bytes"`
	Head     segment.Offset `json:"head"` // oldest record
	Next     segment.Offset `json:"next"` // one past the newest good record
	Damaged  bool           `json:"damaged"`
	Findings []Finding      `json:"findings"`
}

func (r *Report) add(f Finding) {
	f.Shard = r.Shard
	r.Damaged = r.Damaged || f.Severity == Damage
	r.Findings = append(r.Findings, f)
}

// inFile adds a finding about a file as a whole.
func (r *Report) inFile(s Severity, file, kind, detail, advice string) {
	r.add(Finding{Severity: s, File: file, Kind: kind, Detail: detail, Advice: advice})
}

// atRecord adds a finding about damage at a place in a segment.
func (r *Report) atRecord(s Severity, c *segment.Corruption, advice string) {
	f := Finding{
		Severity: s, File: segment.SegmentName(c.Segment), Segment: &c.Segment, Position: &c.Position,
		Kind: c.Kind.String(), Detail: c.Detail, Advice: advice,
	}
	if c.Kind >= segment.Truncated && c.Kind <= segment.RecordBody {
		f.Offset = &c.Offset
	}
	r.add(f)
}
