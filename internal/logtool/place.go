package logtool

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// Names of a broker's data directory: what tells one, and what in its storage directory is
// no shard.
const (
	nodeFile = "node.json"
	metaDir  = "meta"
	logsDir  = "streams"
)

var places = map[string]bool{"caches": true, "counters": true, "aside": true, trashDir: true, "made": true}

// checkPlace refuses a directory that is no place for a log of its own, because a broker
// keeps its logs below it, or its metadata in it: a log that was made there would be in
// nobody's way and of no use, or in the broker's.
func checkPlace(fsys vfs.FS, dir string) error {
	at, err := realPath(dir)
	if err != nil {
		return fmt.Errorf("find %s: %w", dir, err)
	}
	refuse := func(what, data string) error {
		return usagef("--dir %s %s, not a shard's directory: name one, as in %s; felix log verify --dir %s names those there are",
			dir, what, filepath.Join(data, "<tenant>_<namespace>_<stream>_<shard>-<hash>"), dir)
	}
	isData := func(at string) bool { return isFile(fsys, filepath.Join(at, nodeFile)) }
	name, up := filepath.Base(at), filepath.Dir(at)
	switch {
	case isData(at):
		return refuse("is the data directory of a broker", filepath.Join(dir, logsDir))
	case isData(up) && name == metaDir:
		return usagef("--dir %s holds the metadata of a broker, which nothing else may write", dir)
	case isData(up) && name == logsDir:
		return refuse("is where a broker keeps its shards", dir)
	case isData(up):
		return refuse("lies in the data directory of a broker", filepath.Join(up, logsDir))
	case places[name] && isData(filepath.Dir(up)):
		return refuse("is where a broker keeps what is no stream's", dir)
	}
	found, err := findShards(fsys, at, searchDepth)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it says who opens it
	}
	others := 0
	for _, log := range found {
		if log == at {
			return nil
		}
		// The groups of a stream's shard lie in its directory.
		if filepath.Dir(log) != at || filepath.Base(log) != groupsDir {
			others++
		}
	}
	if others > 0 {
		return refuse(fmt.Sprintf("holds none of its own, but %d logs below it", others), dir)
	}
	return checkForeign(fsys, dir, at)
}

// checkForeign refuses a directory of something else: one that is there, holds no log, and
// is not empty. Files of a log without its segments are no foreign ones, nor is what file
// managers and mkfs leave.
func checkForeign(fsys vfs.FS, dir, at string) error {
	entries, err := fsys.ReadDir(at)
	if err != nil {
		return nil // none there yet, or who opens it says what is wrong
	}
	for _, e := range entries {
		name := e.Name()
		class, _ := segment.ParseName(name)
		switch {
		case class != segment.NameUnknown, strings.HasPrefix(name, "."):
		case slices.Contains([]string{lockName, incarnationName, segment.TempName(incarnationName), groupsDir, "lost+found"}, name):
		default:
			return usagef("--dir %s holds no log, and is not empty (%s): name a shard's directory, or one that is empty or not there yet", dir, name)
		}
	}
	return nil
}

// isFile says whether a regular file is there; what cannot be looked at is none.
func isFile(fsys vfs.FS, path string) bool {
	info, err := fsys.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
