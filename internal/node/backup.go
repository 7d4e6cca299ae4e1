package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/archive"
	"github.com/felixlog/felix/internal/broker"
)

// backups implements api.Backups over a node.
type backups struct{ *Node }

// Backup implements api.Backups.
func (b backups) Backup(ctx context.Context, secrets bool) (_ api.Backup, err error) {
	n := b.Node
	if n.plan.root == "" {
		return nil, fmt.Errorf("%w: this broker runs with storage none", api.ErrNoBackup)
	}
	if !n.backing.CompareAndSwap(false, true) {
		return nil, api.ErrBackupRuns
	}
	defer func() {
		if err != nil {
			n.backing.Store(false)
		}
	}()
	k := &backup{node: n, begun: time.Now()}
	if secrets {
		if k.secrets, err = n.secrets(); err != nil {
			return nil, err
		}
	}
	if k.shards, err = n.broker.Backup(ctx); err != nil {
		return nil, err
	}
	n.log.Info("backup begins: nothing is removed from the logs it holds", "logs", k.shards.Logs(), "bytes", k.bytes(), "secrets", secrets)
	return k, nil
}

// backup is one that was cut.
type backup struct {
	node    *Node
	shards  *broker.Backup
	secrets []secretFile
	begun   time.Time
}

type secretFile struct {
	path string // below the data directory
	raw  []byte
}

func (k *backup) bytes() int64 {
	n := k.shards.Bytes()
	for _, s := range k.secrets {
		n += int64(len(s.raw))
	}
	return n
}

// Write implements api.Backup.
func (k *backup) Write(ctx context.Context, out io.Writer) error {
	n := k.node
	bytes := k.bytes()
	err := k.write(ctx, out, bytes)
	if err != nil {
		n.log.Warn("backup ended before its end", "seconds", time.Since(k.begun).Seconds(), "error", err)
		return err
	}
	n.log.Info("backup written", "bytes", bytes, "seconds", time.Since(k.begun).Seconds())
	return nil
}

func (k *backup) write(ctx context.Context, out io.Writer, bytes int64) error {
	n := k.node
	w, err := archive.NewWriter(out, archive.Origin{CreatedAt: k.begun.UTC(), Broker: n.o.Version, DiskID: n.data.DiskID}, k.shards.Definitions, bytes)
	if err != nil {
		return err
	}
	if err := k.shards.Write(ctx, w); err != nil {
		return err
	}
	for _, s := range k.secrets {
		if err := w.Secret(s.path, s.raw); err != nil {
			return err
		}
	}
	return w.Close()
}

// Release implements api.Backup.
func (k *backup) Release() {
	k.shards.Release()
	k.node.backing.Store(false)
}

// secrets reads the keys and certificates that are in the data directory. Those that an
// operator keeps elsewhere are the operator's to keep.
func (n *Node) secrets() (all []secretFile, err error) {
	for _, dir := range []string{keysDir, tlsDir} {
		root := n.data.Path(dir)
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist) && path == root:
				return nil
			case err != nil:
				return err
			}
			rel, err := filepath.Rel(n.data.Root, path)
			if err != nil {
				return err
			}
			rel = filepath.ToSlash(rel)
			if !e.Type().IsRegular() || !archive.SecretPath(rel) {
				return nil
			}
			raw, err := readAtMost(path, archive.MaxSecretBytes)
			all = append(all, secretFile{rel, raw})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", dir, err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: keys and certificates of this broker are not in its data directory", api.ErrNoBackup)
	}
	return all, nil
}

func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(raw)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return raw, errors.Join(err, f.Close())
}
