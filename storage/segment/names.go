package segment

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Names of the files in a shard's directory.
const (
	MarkName      = "durable.mark"
	ReplicaName   = "replica"
	EpochsName    = "epochs"
	ProducersName = "producers"
	SnapshotName  = "snapshot" // of a reading
	LostDir       = "lost"     // what recovery or a promotion cut

	segmentSuffix = ".log"
	indexSuffix   = ".index"
	tempSuffix    = ".tmp"
	nameDigits    = 20
)

// SegmentName is the file name of a segment.
func SegmentName(id ID) string { return digits(id) + segmentSuffix }

// IndexName is the file name of a segment's index.
func IndexName(id ID) string { return digits(id) + indexSuffix }

// TempName is the name under which a file is written before it is renamed into place.
func TempName(name string) string { return name + tempSuffix }

func digits(id ID) string { return fmt.Sprintf("%020d", uint64(id)) }

// NameClass is what a file name in a shard's directory stands for.
type NameClass uint8

const (
	NameUnknown   NameClass = iota // not ours: left alone
	NameSegment                    // segment data
	NameIndex                      // index of a segment
	NameMark                       // durable.mark
	NameReplica                    // replica
	NameEpochs                     // epochs
	NameProducers                  // producers
	NameSnapshot                   // snapshot
	NameLost                       // the directory lost/
	NameTemporary                  // a file of ours that was never renamed into place
)

// ParseName says what a name stands for, and of which segment it is.
func ParseName(name string) (NameClass, ID) {
	switch name {
	case MarkName:
		return NameMark, 0
	case ReplicaName:
		return NameReplica, 0
	case EpochsName:
		return NameEpochs, 0
	case ProducersName:
		return NameProducers, 0
	case SnapshotName:
		return NameSnapshot, 0
	case LostDir:
		return NameLost, 0
	}
	if base, ok := strings.CutSuffix(name, tempSuffix); ok {
		switch class, id := ParseName(base); class {
		case NameIndex, NameReplica, NameEpochs, NameProducers, NameSnapshot:
			return NameTemporary, id
		}
		return NameUnknown, 0
	}
	if len(name) <= nameDigits {
		return NameUnknown, 0
	}
	for i := range nameDigits {
		if name[i] < '0' || name[i] > '9' {
			return NameUnknown, 0
		}
	}
	id, err := strconv.ParseUint(name[:nameDigits], 10, 64)
	if err != nil {
		return NameUnknown, 0
	}
	switch name[nameDigits:] {
	case segmentSuffix:
		return NameSegment, ID(id)
	case indexSuffix:
		return NameIndex, ID(id)
	}
	return NameUnknown, 0
}

const readablePart = 32 // bytes of each part that are kept in a directory name

// ShardDirName is the name of a shard's directory: a readable part cut and reduced to
// letters, digits, '-' and '_', and a hash of the exact key. It holds no dot and no
// slash whatever the names are.
func ShardDirName(tenant, namespace, name string, shard uint32) string {
	number := strconv.FormatUint(uint64(shard), 10)
	h := fnv.New64a()
	key := make([]byte, 0, len(tenant)+len(namespace)+len(name)+len(number)+3)
	key = append(append(key, tenant...), 0)
	key = append(append(key, namespace...), 0)
	key = append(append(key, name...), 0)
	key = append(key, number...)
	h.Write(key)
	return readable(tenant) + "_" + readable(namespace) + "_" + readable(name) + "_" + number + fmt.Sprintf("-%016x", h.Sum64())
}

func readable(s string) string {
	b := []byte(s[:min(len(s), readablePart)])
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-':
		default:
			b[i] = '_'
		}
	}
	return string(b)
}
