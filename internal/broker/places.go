package broker

import (
	"io/fs"
	"path/filepath"
	"regexp"

	"github.com/felixlog/felix/internal/dirlock"
)

// Place is a directory of the broker's and what belongs in it.
type Place struct {
	Dir string
	Own func(fs.DirEntry) bool
}

var markName = regexp.MustCompile(`-[0-9a-f]{16}$`)

// Roots are the directories around the shards' below root. Directories among the shards'
// own are taken for the broker's here: it names those that no stream or cache has itself.
func Roots(root string) (places []Place) {
	for _, sub := range []string{"", cachesDir, countersDir} {
		places = append(places, Place{filepath.Join(root, sub), func(e fs.DirEntry) bool { return e.IsDir() || sub == "" && e.Name() == dirlock.Name }})
	}
	return append(places, Place{filepath.Join(root, madeDir), func(e fs.DirEntry) bool { return !e.IsDir() && markName.MatchString(e.Name()) }})
}
