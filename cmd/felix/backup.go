package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/archive"
	"github.com/felixlog/felix/internal/node"
	"github.com/felixlog/felix/storage/vfs"
)

func (e *environment) backupCommand() *cobra.Command {
	var secrets bool
	c := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write everything a running broker stores into one file",
		Long: "Write what a broker stores into one tar file while it goes on serving. FILE must not exist; - is standard output.\n" +
			"The file is written beside FILE, verified and flushed, and gets its name last. Over standard output nothing verifies it:\n" +
			"`felix restore` will, and the exit code says whether all of it came.\n\n" +
			"In it: tenants with their quotas, namespaces, streams and caches with their settings; the records of every durable\n" +
			"stream, its consumer groups, the values of caches, counters. Each shard is cut once, at a place that the manifest\n" +
			"names: everything acknowledged before the backup began is in it. Shards are not cut at the same moment.\n" +
			"Not in it: records of in-memory streams, settings of the broker, files of the machine such as certificates of one's own,\n" +
			"and, without --secrets, signing keys and generated certificates; a restored broker then makes new ones, and tokens\n" +
			"and context files have to be made anew.\n\n" +
			"It needs node.manage on cluster:*, and --secrets also tenant.manage on cluster:* and https or the machine itself.\n" +
			"Retention and compaction remove nothing from a shard until it is written. It may take as long as it likes; --timeout\n" +
			"bounds how long nothing may come.",
		Example: "  felix backup felix-$(date +%F).tar\n  felix backup - | zstd > felix.tar.zst",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error { return e.backup(c.Context(), args[0], secrets) })
	c.Flags().BoolVar(&secrets, "secrets", false, "put signing keys and generated certificates into it")
	return c
}

// backupLine is the summary of backup and restore with --json.
type backupLine struct {
	File      string `json:"file"`
	DataDir   string `json:"data_dir,omitempty"`
	FileBytes int64  `json:"file_bytes"`
	archive.Origin
	archive.Totals
	Cuts []archive.Log `json:"cuts,omitempty"`
}

func (e *environment) backup(ctx context.Context, file string, secrets bool) error {
	if file == "-" {
		if f, ok := e.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return usagef("a backup is not for a terminal: name a file, or redirect the output")
		}
	} else if _, err := os.Lstat(file); err == nil {
		return usagef("%s exists: a backup does not replace a file", file)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return &exitError{exitUsage, err}
	}
	if file != "-" {
		if err := namedFile(filepath.Dir(file)); err != nil {
			return err
		}
		if err := e.removePartials(file); err != nil {
			return err
		}
	}
	m, err := e.manager()
	if err != nil {
		return err
	}
	u := m.base.JoinPath("v1", "backup")
	if secrets {
		u.RawQuery = url.Values{"secrets": {"true"}}.Encode()
	}
	ctx, silent := newSilence(ctx, m.timeout)
	defer silent.end()
	resp, err := m.send(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	resp.Body = silent.begun(resp.Body)
	defer resp.Body.Close()
	if file == "-" {
		_, err := e.download(m, resp, e.out)
		return err
	}
	tmp, unlock, err := newPartial(file)
	if err != nil {
		return err
	}
	// Of no use once it was not finished. It is gone already when it was.
	defer unlock()
	defer os.Remove(tmp.Name())
	size, err := e.download(m, resp, tmp)
	var a *archive.Archive
	if err == nil {
		a, err = e.verify(ctx, tmp, size)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := giveName(tmp.Name(), file); err != nil {
		return err
	}
	return e.printBackup(backupLine{File: file, FileBytes: size, Origin: a.Origin, Totals: a.Totals(), Cuts: cutsOf(a)}, "backup of")
}

// partialInfix is between a backup's name and the digits of a file that is to become it.
const partialInfix = ".partial-"

// newPartial makes the file that a backup is written to, beside where it shall be. It is
// locked until unlock: one that is not is of a backup that was killed.
func newPartial(file string) (tmp *os.File, unlock func(), err error) {
	for {
		if tmp, err = os.CreateTemp(filepath.Dir(file), filepath.Base(file)+partialInfix+"*"); err != nil {
			return nil, nil, err
		}
		lock, err := vfs.OS().Lock(tmp.Name())
		switch {
		case err == nil:
			// Before it was locked another backup may have removed it as one that was left.
			if sameFile(tmp) {
				return tmp, func() { lock.Close() }, nil
			}
			_, err = removeLocked(tmp)
			err = errors.Join(err, lock.Close())
		case errors.Is(err, vfs.ErrLocked):
			err = nil // that other backup is about to
		default:
			return tmp, func() {}, nil // a file system without locks, where nobody removes it either
		}
		if err = errors.Join(err, tmp.Close()); err != nil {
			return nil, nil, err
		}
	}
}

// sameFile reports whether an open file still has its name.
func sameFile(f *os.File) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err == nil && os.SameFile(open, named)
}

// removePartials removes what backups of the same name left that were killed, and says so.
func (e *environment) removePartials(file string) error {
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		digits, ok := strings.CutPrefix(entry.Name(), filepath.Base(file)+partialInfix)
		if !ok || strings.Trim(digits, "0123456789") != "" || !entry.Type().IsRegular() {
			continue
		}
		left := filepath.Join(filepath.Dir(file), entry.Name())
		removed := false
		f, err := os.Open(left)
		if err == nil {
			removed, err = removePartial(f)
			f.Close()
		}
		switch {
		case errors.Is(err, vfs.ErrLocked), errors.Is(err, fs.ErrNotExist):
			// It is being written, or its backup has ended.
		case err != nil:
			fmt.Fprintf(e.err, "%s was left by a backup that was killed, and stays: %v\n", left, err)
		case removed:
			fmt.Fprintf(e.err, "removed %s, which a backup that was killed had left\n", left)
		}
	}
	return nil
}

// removePartial removes what a backup that was killed left, open as f; vfs.ErrLocked of
// one that is being written. removed is false when its backup ended by itself after f was
// opened: it had removed it, or given it its name.
func removePartial(f *os.File) (removed bool, err error) {
	lock, err := vfs.OS().Lock(f.Name())
	if err != nil {
		return false, err
	}
	removed, err = removeLocked(f)
	return removed, errors.Join(err, lock.Close())
}

// removeLocked removes the file that f was opened as, or what its lock made in its place,
// empty, once it had gone: removed is false then.
func removeLocked(f *os.File) (removed bool, err error) {
	same := sameFile(f)
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return same, nil
}

// download copies a backup, and says how far it is and why it ended early.
func (e *environment) download(m *manager, resp *http.Response, to io.Writer) (int64, error) {
	p := &passing{to: to}
	p.bar = func(total int64) *progress { return e.progress("backup, bytes", total) }
	n, err := io.Copy(p, resp.Body)
	if p.shown != nil {
		p.shown.end()
	}
	switch reason := resp.Trailer.Get(api.BackupError); {
	case p.failed != nil:
		return n, p.failed
	case err != nil:
		return n, &exitError{exitUnreachable, fmt.Errorf("the connection to %s broke after %d bytes of the backup: %w", m.base.Host, n, err)}
	case reason != "":
		return n, fmt.Errorf("the broker gave the backup up: %s", reason)
	}
	return n, nil
}

// passing counts what passes, against the total that the beginning says.
type passing struct {
	to     io.Writer
	bar    func(total int64) *progress
	shown  *progress
	first  []byte
	failed error // of to
}

// headBytes are enough to hold the first entry of a backup.
const headBytes = 4096

func (p *passing) Write(b []byte) (int, error) {
	if p.shown == nil {
		p.first = append(p.first, b[:min(len(b), headBytes-len(p.first))]...)
		if total, ok := archive.Expected(p.first); ok || len(p.first) == headBytes {
			if !ok {
				total = -1
			}
			p.shown, p.first = p.bar(total), nil
		}
	}
	n, err := p.to.Write(b)
	p.failed = err
	if p.shown != nil {
		p.shown.add(int64(n))
	}
	return n, err
}

// verify opens a backup.
func (e *environment) verify(ctx context.Context, r io.ReaderAt, size int64) (*archive.Archive, error) {
	bar := e.progress("verified, bytes", 2*size)
	defer bar.end()
	return archive.Open(ctx, r, size, archive.Options{Progress: bar.add})
}

// giveName gives a finished file its name, which nothing may have by now, durably.
func giveName(tmp, file string) error {
	if err := os.Link(tmp, file); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s was made by somebody else meanwhile: the backup is not put in its place", file)
	} else if err != nil {
		// A file system without links: between the look and the renaming it may be made.
		if _, statErr := os.Lstat(file); !errors.Is(statErr, fs.ErrNotExist) {
			return err
		}
		if err := os.Rename(tmp, file); err != nil {
			return err
		}
	}
	return vfs.OS().SyncDir(filepath.Dir(file))
}

// cutsOf are the logs without their segments.
func cutsOf(a *archive.Archive) []archive.Log {
	cuts := make([]archive.Log, len(a.Logs))
	for i, l := range a.Logs {
		l.Segments = nil
		cuts[i] = l
	}
	return cuts
}

func (e *environment) printBackup(l backupLine, what string) error {
	if e.opts.json {
		printJSON(e.out, l)
		return nil
	}
	_, err := fmt.Fprintf(e.out, "%s %s: %d streams, %d caches, %d records in %d logs, %d bytes\n",
		what, l.CreatedAt.Format("2006-01-02 15:04:05 UTC"), l.Streams, l.Caches, l.Records, l.Logs, l.Bytes)
	return err
}

func (e *environment) restoreCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "restore FILE --data-dir DIR",
		Short: "Make a data directory from a backup",
		Long: "Verify the whole of a backup, and only then write it as the data directory of a new broker: the same records at the\n" +
			"same offsets, positions of groups, values with their versions, counters. DIR must be empty or not exist. It ends up as\n" +
			"`felix serve --data DIR` expects it, owned by the user who runs this.\n\n" +
			"It is another broker: disk id and incarnations are new, and so are keys and certificates unless the backup has them;\n" +
			"each tenant gets a signing key. A restore that was stopped leaves a directory that no broker starts on; run it again.",
		Example: "  felix restore felix-2026-01-31.tar --data-dir ./felix-data",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		if dir == "" {
			return usagef("name the directory with --data-dir")
		}
		return e.restore(c.Context(), args[0], dir)
	})
	c.Flags().StringVar(&dir, "data-dir", "", "data directory to make")
	return c
}

func (e *environment) restore(ctx context.Context, file, dir string) (err error) {
	f, err := os.Open(file)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return usagef("%s is not a file: a backup is verified before it is used, so it is read twice", file)
	}
	a, err := e.verify(ctx, f, info.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	totals := a.Totals()
	bar := e.progress("restored, bytes", totals.Bytes)
	err = node.Restore(ctx, a, dir, node.RestoreOptions{Progress: bar.add})
	bar.end()
	if err != nil {
		return err
	}
	return e.printBackup(backupLine{File: file, DataDir: dir, FileBytes: info.Size(), Origin: a.Origin, Totals: totals}, "restored into "+dir+" the backup of")
}
