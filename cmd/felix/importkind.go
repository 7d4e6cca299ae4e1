package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/felixlog/felix/internal/cache"
	"github.com/felixlog/felix/internal/counter"
	"github.com/felixlog/felix/internal/projection"
	"github.com/felixlog/felix/internal/queue"
	"github.com/felixlog/felix/storage/segment"
)

// logKind is what the records of a directory are.
type logKind int

const (
	kindStream      logKind = iota // nothing that all of the records have in common
	kindCache                      // entries of a cache, or of the reference's groups
	kindCounters                   // counters
	kindGroups                     // this broker's consumer groups
	kindDefinitions                // this broker's tenants, streams, caches
	kinds
)

// surveyor finds out what a directory's records are. A log is of a kind if every record
// of it is: any one record may look like another kind's by chance.
type surveyor struct {
	seen    uint64
	differs [kinds]bool
	noEntry error // of the first record that is no entry of a cache
}

// see is shown each record. It refuses none: only the whole log says what it is.
func (s *surveyor) see(r *segment.Record) error {
	if r.Kind == segment.KindGenerationStart {
		return nil
	}
	s.seen++
	payload, _ := r.Visible()
	for kind, check := range [...]func([]byte) error{
		kindCache: checkEntry, kindCounters: counter.Check, kindGroups: checkGroups, kindDefinitions: checkSet,
	} {
		if check == nil || s.differs[kind] {
			continue
		}
		if err := check(payload); err != nil {
			s.differs[kind] = true
			if logKind(kind) == kindCache {
				s.noEntry = fmt.Errorf("record %d is no entry of a cache (%w)", r.Offset, err)
			}
		}
	}
	return nil
}

// kind is what the log is, the kinds whose records hold least by chance first: entry sets,
// of which those of groups are some, begin as additions to a counter do.
func (s *surveyor) kind() logKind {
	if s.seen > 0 {
		for _, k := range []logKind{kindCache, kindGroups, kindDefinitions, kindCounters} {
			if !s.differs[k] {
				return k
			}
		}
	}
	return kindStream
}

// checkEntry refuses a record that is no entry of a cache.
func checkEntry(payload []byte) error {
	entry, err := cache.DecodeEntry(payload)
	if err == nil && (len(entry.Key) == 0 || len(entry.Key) > cache.MaxKeyBytes) {
		err = fmt.Errorf("key of %d bytes, not 1 to %d", len(entry.Key), cache.MaxKeyBytes)
	}
	return err
}

func checkSet(payload []byte) error {
	_, err := projection.ReadEntrySet(payload, func(projection.Entry) error { return nil })
	return err
}

func checkGroups(payload []byte) error {
	_, err := projection.ReadEntrySet(payload, func(e projection.Entry) error { return queue.NewLoader().Add(e) })
	return err
}

// refuse says why a directory is not what is to be imported, and what to do instead. The
// reference keeps cursors and dead letters of groups as entries like a cache's, so that
// only the directory above tells them from a cache.
func (s *surveyor) refuse(dir string, intoCache bool) error {
	above := ""
	if abs, err := filepath.Abs(dir); err == nil {
		above = strings.ToLower(filepath.Base(filepath.Dir(abs)))
	}
	within := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(above, p) })
	}
	asIs := "--as-is imports the records all the same"
	kind := s.kind()
	switch {
	case kind == kindCounters, s.seen > 0 && above == "counters":
		return fmt.Errorf("%s holds counters: an import of them is not there, for how the reference writes them is not published; "+
			"this broker's come with `felix backup` and `felix restore`, and `felix counter add` sets one; %s", dir, asIs)
	case kind == kindGroups:
		return fmt.Errorf("%s holds this broker's consumer groups: they come with `felix backup` and `felix restore`; "+
			"into another stream: `felix group create STREAM GROUP --shard N --from OFFSET`, with the position that `felix group describe` prints; %s", dir, asIs)
	case kind == kindDefinitions:
		return fmt.Errorf("%s holds this broker's definitions of tenants, streams and caches: they come with `felix backup` and `felix restore`; %s", dir, asIs)
	case kind == kindCache && within("group", "cursor", "dead", "letter"):
		return fmt.Errorf("%s lies in %s and holds cursors or dead letters of the reference's consumer groups: how it writes them is not published, so they cannot be imported; "+
			"read positions with its `group describe` and set them with `felix group create STREAM GROUP --shard N --from OFFSET`, "+
			"counted from the first record imported; if it is a cache's directory, %s", dir, above, asIs)
	case kind == kindCache && !intoCache:
		return fmt.Errorf("%s holds entries of a cache, or of the reference's consumer groups: import a cache's with --cache; "+
			"if it is a stream's whose payloads only look so, %s", dir, asIs)
	case intoCache && s.noEntry != nil:
		return fmt.Errorf("%w: import a stream's directory with --stream", s.noEntry)
	}
	return nil
}
