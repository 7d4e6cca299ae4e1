package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/storage/segment"
)

// Format and Version stand in the first entry and in the manifest.
const (
	Format  = "felix-backup"
	Version = 1
)

// Names of entries.
const (
	headName     = "felix-backup.json"
	manifestName = "manifest.json"
	secretsDir   = "secrets"
)

// Limits of a backup.
const (
	// maxManifest bounds the manifest, in bytes: that of some 400,000 segments.
	maxManifest = 64 << 20
	// maxEntries bounds the entries of one file.
	maxEntries = 1 << 20
	maxHead    = 64 << 10
	// MaxSecretBytes bounds a file of keys or certificates.
	MaxSecretBytes = 1 << 20
)

// Kind is what a log is of.
type Kind string

// The kinds of log.
const (
	KindStream   Kind = "stream"   // the records of a stream shard
	KindGroups   Kind = "groups"   // its consumer groups
	KindCache    Kind = "cache"    // the values of a cache shard
	KindCounters Kind = "counters" // its counters
)

// Checksum is a CRC-32 (IEEE), eight hex digits in JSON.
type Checksum uint32

// MarshalText implements encoding.TextMarshaler.
func (c Checksum) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%08x", uint32(c)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Checksum) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 32)
	if err != nil || len(b) != 8 {
		return fmt.Errorf("checksum %q is not eight hex digits", b)
	}
	*c = Checksum(v)
	return nil
}

// LogName names a log.
type LogName struct {
	Kind      Kind   `json:"kind"`
	Tenant    string `json:"tenant"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Shard     uint32 `json:"shard"`
}

// Full is the name of the stream or cache.
func (n LogName) Full() meta.Name {
	return meta.Name{Tenant: n.Tenant, Namespace: n.Namespace, Name: n.Name}
}

// String is the name in errors and listings.
func (n LogName) String() string { return fmt.Sprintf("%s %s/%d", n.Kind, n.Full(), n.Shard) }

// entry is the name of the entry of one of its segments.
func (n LogName) entry(id segment.ID) string {
	return fmt.Sprintf("%s/%s/%d/%s", n.Kind, n.Full(), n.Shard, segment.SegmentName(id))
}

// Segment is one segment of a log.
type Segment struct {
	ID       segment.ID     `json:"id"`
	Base     segment.Offset `json:"base"` // offset of its first record
	Next     segment.Offset `json:"next"` // one past its last
	Bytes    int64          `json:"bytes"`
	Checksum Checksum       `json:"crc32"`
}

// Log is one log as far as it was cut.
type Log struct {
	LogName
	First    segment.Offset `json:"first"` // oldest record
	Next     segment.Offset `json:"next"`  // the cut: one past the newest record
	CutAt    time.Time      `json:"cut_at"`
	Segments []Segment      `json:"segments"` // oldest first
}

// Bytes is what its segments come to.
func (l *Log) Bytes() (n int64) {
	for _, s := range l.Segments {
		n += s.Bytes
	}
	return n
}

// Secret is a file of keys or certificates.
type Secret struct {
	Path     string   `json:"path"` // below the data directory
	Bytes    int64    `json:"bytes"`
	Checksum Checksum `json:"crc32"`
}

// Definitions are what exists.
type Definitions struct {
	Tenants    []meta.Tenant    `json:"tenants"`
	Namespaces []meta.Namespace `json:"namespaces"`
	Streams    []meta.Stream    `json:"streams"`
	Caches     []meta.Cache     `json:"caches"`
}

// Origin says where and when a backup was made.
type Origin struct {
	CreatedAt time.Time `json:"created_at"`
	Broker    string    `json:"broker_version"`
	DiskID    string    `json:"disk_id"`
}

// Manifest is what a backup holds.
type Manifest struct {
	Origin
	Definitions
	Logs    []Log    `json:"logs"`
	Secrets []Secret `json:"secrets,omitempty"`
}

// Totals are a backup's figures.
type Totals struct {
	Tenants  int    `json:"tenants"`
	Streams  int    `json:"streams"`
	Caches   int    `json:"caches"`
	Logs     int    `json:"logs"`
	Segments int    `json:"segments"`
	Records  uint64 `json:"records"`
	Bytes    int64  `json:"bytes"`
	Secrets  int    `json:"secrets"`
}

// Totals counts what the manifest names.
func (m *Manifest) Totals() Totals {
	t := Totals{Tenants: len(m.Tenants), Streams: len(m.Streams), Caches: len(m.Caches), Logs: len(m.Logs), Secrets: len(m.Secrets)}
	for i := range m.Logs {
		l := &m.Logs[i]
		t.Segments += len(l.Segments)
		t.Records += uint64(l.Next - l.First)
		t.Bytes += l.Bytes()
	}
	for _, s := range m.Secrets {
		t.Bytes += s.Bytes
	}
	return t
}

// head is the first entry.
type head struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Bytes   int64  `json:"bytes"` // of what follows, the manifest apart
}

// envelope is the last entry: the manifest's bytes and their checksum.
type envelope struct {
	Format   string          `json:"format"`
	Version  int             `json:"version"`
	Checksum Checksum        `json:"crc32"`
	Manifest json.RawMessage `json:"manifest"`
}

func encodeManifest(m *Manifest) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(envelope{Format, Version, Checksum(crc32.ChecksumIEEE(raw)), raw})
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("manifest of %d bytes: a backup holds at most %d", len(b), maxManifest)
	}
	return b, err
}

// decodeManifest reads the last entry.
func decodeManifest(b []byte) (*Manifest, error) {
	var e envelope
	// The version is looked at first: what else is there is that version's to say.
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, damaged("is not the manifest of a backup: %v", err)
	}
	if err := checkFormat(e.Format, e.Version); err != nil {
		return nil, err
	}
	if sum := Checksum(crc32.ChecksumIEEE(e.Manifest)); sum != e.Checksum {
		return nil, damaged("has checksum %08x and says %08x", uint32(sum), uint32(e.Checksum))
	}
	m := new(Manifest)
	if err := strict(e.Manifest, m); err != nil {
		return nil, damaged("cannot be read: %v", err)
	}
	return m, nil
}

func checkFormat(format string, version int) error {
	switch {
	case format != Format:
		return refused(ErrNotBackup, "says it is %.40q, not %q", format, Format)
	case version != Version:
		return refused(ErrVersion, "is of version %d, and this release reads %d", version, Version)
	}
	return nil
}

// strict decodes one JSON value and refuses fields that are not known.
func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// entryName is a parsed name: of a segment, or of a secret.
type entryName struct {
	log    LogName
	id     segment.ID
	secret string
}

var (
	partPattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	secretPattern = regexp.MustCompile(`^(keys|tls)(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}){1,2}$`)
)

// SecretPath says whether a path below the data directory is one that secrets may have.
func SecretPath(path string) bool { return secretPattern.MatchString(path) }

// parseName takes an entry's name apart. What it accepts it would write the same way, so
// that two names never mean one thing, and no part leads anywhere.
func parseName(name string) (entryName, bool) {
	if path, ok := strings.CutPrefix(name, secretsDir+"/"); ok {
		return entryName{secret: path}, SecretPath(path)
	}
	part := strings.Split(name, "/")
	if len(part) != 6 {
		return entryName{}, false
	}
	switch Kind(part[0]) {
	case KindStream, KindGroups, KindCache, KindCounters:
	default:
		return entryName{}, false
	}
	for _, p := range part[1:4] {
		if !partPattern.MatchString(p) {
			return entryName{}, false
		}
	}
	shard, err := strconv.ParseUint(part[4], 10, 32)
	class, id := segment.ParseName(part[5])
	n := entryName{log: LogName{Kind(part[0]), part[1], part[2], part[3], uint32(shard)}, id: id}
	return n, err == nil && class == segment.NameSegment && n.log.entry(id) == name
}
