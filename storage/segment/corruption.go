package segment

import (
	"fmt"
	"strconv"
)

// CorruptionKind is what is wrong with bytes read from disk.
type CorruptionKind uint8

// The findings of scans and decoders. The first group is about a segment's header, the
// second about a record, the third about the files beside the segment.
const (
	HeaderTruncated CorruptionKind = iota + 1 // fewer bytes than a segment header
	HeaderMagic                               // not a segment
	HeaderVersion                             // a version that is not read
	HeaderFlags                               // flags that are not known
	HeaderChecksum                            // the header does not match its checksum

	Truncated            // fewer bytes than a record header, or than its length says
	RecordHeaderChecksum // the record header does not match its checksum
	RecordChecksum       // the record does not match its checksum
	OffsetOutOfOrder     // an offset other than the next one
	RecordTooLarge       // a length over the limit
	RecordFlags          // two kinds at once, or a kind the segment's version cannot hold
	RecordBody           // a checksummed body that does not parse

	IndexDamaged    // an index file that cannot be used
	SideFileDamaged // a side file that cannot be used

	corruptionKindEnd
)

var corruptionNames = [corruptionKindEnd]string{
	HeaderTruncated: "HeaderTruncated", HeaderMagic: "HeaderMagic", HeaderVersion: "HeaderVersion",
	HeaderFlags: "HeaderFlags", HeaderChecksum: "HeaderChecksum",
	Truncated: "Truncated", RecordHeaderChecksum: "RecordHeaderChecksum", RecordChecksum: "RecordChecksum",
	OffsetOutOfOrder: "OffsetOutOfOrder", RecordTooLarge: "RecordTooLarge", RecordFlags: "RecordFlags",
	RecordBody: "RecordBody", IndexDamaged: "IndexDamaged", SideFileDamaged: "SideFileDamaged",
}

// String is the name used in errors, dumps and JSON.
func (k CorruptionKind) String() string {
	if k > 0 && k < corruptionKindEnd {
		return corruptionNames[k]
	}
	return "CorruptionKind(" + strconv.Itoa(int(k)) + ")"
}

// Corruption is the error of every decoder of this package: what is wrong, and where.
type Corruption struct {
	Shard    string         // as given by the caller; may be empty
	Segment  ID             // segment file it was found in
	File     string         // name of the file if it is not the segment's own
	Position int64          // byte position of the damaged thing in its file
	Offset   Offset         // the record's offset as it should be
	Kind     CorruptionKind // what is wrong
	Detail   string         // values that disagree, for the reader of a log
}

// Error names shard, file and byte position.
func (c *Corruption) Error() string {
	file := c.File
	if file == "" {
		file = SegmentName(c.Segment)
	}
	s := file + ": position " + strconv.FormatInt(c.Position, 10)
	if c.Shard != "" {
		s = "shard " + c.Shard + ": " + s
	}
	if c.Kind >= Truncated && c.Kind <= RecordBody {
		s += ": offset " + c.Offset.String()
	}
	s += ": " + c.Kind.String()
	if c.Detail != "" {
		s += ": " + c.Detail
	}
	return s
}

func corrupt(kind CorruptionKind, format string, args ...any) *Corruption {
	return &Corruption{Kind: kind, Detail: fmt.Sprintf(format, args...)}
}
