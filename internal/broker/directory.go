package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// Names below the root. A shard's directory holds the incarnation of its stream.
const (
	incarnationName = "incarnation"
	asideDir        = "aside" // directories of other incarnations
	trashDir        = "trash" // of deleted streams, on their way out
	madeDir         = "made"  // an empty file for each shard whose directory was made
)

// MissingError says that a shard's directory, or the log in it, is gone: what was
// acknowledged is not there, and to begin anew would say that it never was.
type MissingError struct {
	Dir   string
	Mark  string // the file that says that it was made
	Empty bool   // the directory is there and holds no log
}

func (e *MissingError) Error() string {
	what := "is missing, and it was there"
	if e.Empty {
		what = "holds no log, and it did"
	}
	return fmt.Sprintf("directory %s %s: mount or restore it, or remove %s to begin anew without its records", e.Dir, what, e.Mark)
}

// madeMark is the file that says that a directory below root/sub was made for the
// incarnation. It is not below sub itself: what is missing may be the whole of that.
func madeMark(root, sub, dirName string, incarnation uint64) string {
	if sub != "" {
		dirName = sub + "." + dirName
	}
	return filepath.Join(root, madeDir, fmt.Sprintf("%s-%016x", dirName, incarnation))
}

// groupsMark is the file that says that the groups of the shard had a log.
func groupsMark(root, dirName string, incarnation uint64) string {
	return madeMark(root, groupsDir, dirName, incarnation)
}

// markMade records durably that the directory was made.
func markMade(fsys vfs.FS, mark string) error {
	if err := fsys.MkdirAll(filepath.Dir(mark)); err != nil {
		return err
	}
	f, err := fsys.OpenFile(mark, vfs.Create)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(mark))
}

// The incarnation file, 20 bytes: magic "FLIC", version u16, reserved u16, incarnation
// u64, crc u32 over what is before it.
const (
	incarnationMagic   = 0x464C4943
	incarnationVersion = 1
	incarnationSize    = 20
)

func appendIncarnation(dst []byte, v uint64) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, incarnationMagic)
	dst = binary.BigEndian.AppendUint16(dst, incarnationVersion)
	dst = binary.BigEndian.AppendUint16(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, v)
	return binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:]))
}

// decodeIncarnation gives 0, which is no incarnation, for anything but a whole file.
func decodeIncarnation(b []byte) uint64 {
	if len(b) != incarnationSize || binary.BigEndian.Uint32(b) != incarnationMagic ||
		binary.BigEndian.Uint16(b[4:]) != incarnationVersion || binary.BigEndian.Uint16(b[6:]) != 0 ||
		binary.BigEndian.Uint32(b[16:]) != crc32.ChecksumIEEE(b[:16]) {
		return 0
	}
	return binary.BigEndian.Uint64(b[8:])
}

// readIncarnation gives 0 when the file is missing or damaged.
func readIncarnation(fsys vfs.FS, dir string) (uint64, error) {
	b, err := segment.ReadFile(fsys, dir, incarnationName, incarnationSize)
	if errors.Is(err, fs.ErrNotExist) || isA[*segment.Corruption](err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return decodeIncarnation(b), nil
}

// claimed is what claim found.
type claimed struct {
	setAside string // where a directory of another incarnation went; empty if none
	found    uint64
	adopted  bool // the directory had records and did not say whose
}

// hasSegments says whether a directory holds segments, and whether it is there.
func hasSegments(fsys vfs.FS, dir string) (segments, there bool, err error) {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	for _, e := range entries {
		if class, _ := segment.ParseName(e.Name()); class == segment.NameSegment && !e.IsDir() {
			return true, true, err
		}
	}
	return false, true, err
}

// exists says whether a file or directory is there.
func exists(fsys vfs.FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// emptied says whether a directory without segments, whose making was marked, had a log.
// The mark is made when the directory says its incarnation, and the first segment comes
// after it: one that says its incarnation had segments only if its durable.mark knows one.
func emptied(fsys vfs.FS, dir string, says bool) (bool, error) {
	if !says {
		return true, nil
	}
	m, ok, err := segment.ReadMark(fsys, dir)
	return ok && m.SyncedBytes > 0, err
}

// claim makes dir, below root/sub, the directory of the incarnation want. One of another incarnation is
// renamed into root/aside. One that does not say is taken: its file was lost, or it was
// being made when the machine stopped. One that was made and is gone, or has lost its log,
// is a *MissingError and stays as it is.
func claim(fsys vfs.FS, root, sub, dirName string, want uint64) (dir string, c claimed, err error) {
	home := filepath.Join(root, sub)
	dir = filepath.Join(home, dirName)
	c.found, err = readIncarnation(fsys, dir)
	if err != nil {
		return "", c, err
	}
	mark := madeMark(root, sub, dirName, want)
	made, err := exists(fsys, mark)
	if err != nil {
		return "", c, err
	}
	if c.found == want || c.found == 0 {
		segments, there, err := hasSegments(fsys, dir)
		if err != nil {
			return "", c, err
		}
		if made && !segments {
			lost := true
			if there {
				lost, err = emptied(fsys, dir, c.found == want)
			}
			if err != nil {
				return "", c, err
			}
			if lost {
				return "", c, &MissingError{Dir: dir, Mark: mark, Empty: there}
			}
		}
		c.adopted = c.found == 0 && segments
		if !segments && sub == "" { // begun anew, and its groups with it
			if err := fsys.Remove(groupsMark(root, dirName, want)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", c, err
			}
		}
	} else if c.setAside, err = moveInto(fsys, home, asideDir, dirName, c.found); err != nil {
		return "", c, err
	}
	if c.found == want && made {
		return dir, c, nil
	}
	if c.found != want { // else restored, or the machine stopped before the mark
		if err := fsys.MkdirAll(dir); err != nil {
			return "", c, err
		}
		if err := segment.WriteFile(fsys, dir, incarnationName, appendIncarnation(nil, want)); err != nil {
			return "", c, err
		}
	}
	// No power cut leaves the mark and takes what it speaks of.
	if err := fsys.SyncDir(home); err != nil {
		return "", c, err
	}
	if sub != "" {
		if err := fsys.SyncDir(root); err != nil {
			return "", c, err
		}
	}
	return dir, c, markMade(fsys, mark)
}

// moveInto renames root/dirName to root/sub/dirName-incarnation, with a number after it
// if that is taken, and makes the move durable.
func moveInto(fsys vfs.FS, root, sub, dirName string, incarnation uint64) (string, error) {
	parent := filepath.Join(root, sub)
	if err := fsys.MkdirAll(parent); err != nil {
		return "", err
	}
	base := fmt.Sprintf("%s-%016x", dirName, incarnation)
	target := filepath.Join(parent, base)
	for n := 2; ; n++ {
		_, err := fsys.Stat(target)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return "", err
		}
		target = filepath.Join(parent, fmt.Sprintf("%s-%d", base, n))
	}
	if err := fsys.Rename(filepath.Join(root, dirName), target); err != nil {
		return "", err
	}
	return target, errors.Join(fsys.SyncDir(parent), fsys.SyncDir(root))
}

// removeTree removes dir and what is in it, one file at a time, so that no single call
// holds the file system for as long as a whole log takes. stop is asked between two;
// what is left is removed another time.
func removeTree(fsys vfs.FS, dir string, stop func() bool) (done bool, err error) {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if stop() {
			return false, nil
		}
		name := filepath.Join(dir, e.Name())
		if e.IsDir() {
			done, err = removeTree(fsys, name, stop)
			if err != nil || !done {
				return false, err
			}
			continue
		}
		if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if err := fsys.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}
