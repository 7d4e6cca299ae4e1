package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/felixlog/felix/internal/auth"
)

// Backups makes backups of the broker, one at a time.
type Backups interface {
	// Backup cuts every shard. Errors: ErrBackupRuns, ErrNoBackup, those of the shards.
	Backup(ctx context.Context, secrets bool) (Backup, error)
}

// Backup is one that was cut. Release has to be called.
type Backup interface {
	Write(ctx context.Context, w io.Writer) error
	Release()
}

// Reasons why there is no backup.
var (
	ErrBackupRuns = errors.New("a backup is being taken: wait for its end")
	ErrNoBackup   = errors.New("nothing to back up")
)

// BackupError is the trailer that says why a backup ended before its end.
const BackupError = "Felix-Error"

// backupStall is how long the reader of a backup may take nothing before it is cut off:
// the shards are held for it.
const backupStall = 2 * time.Minute

// backup streams a backup. A backup that fails on the way has no manifest, and the trailer
// BackupError; one whose connection ends has neither.
func backup(q *request) (answer, error) {
	if err := q.need(auth.NodeManage, auth.ClusterObject()); err != nil {
		return answer{}, err
	}
	v := q.http.URL.Query()
	secrets := false
	switch raw := v.Get("secrets"); raw {
	case "true":
		secrets = true
	case "", "false":
	default:
		return answer{}, invalid("secrets %q is neither true nor false", raw)
	}
	if secrets {
		// Whoever has the keys mints what tokens they like.
		if err := q.need(auth.TenantManage, auth.ClusterObject()); err != nil {
			return answer{}, err
		}
		if q.http.TLS == nil && !fromLoopback(q.http.RemoteAddr) {
			return answer{}, invalid("keys are handed out over https, or to the machine itself: see http.tls_cert")
		}
	}
	b, err := q.Backups.Backup(q.http.Context(), secrets)
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, streamed(func(w http.ResponseWriter) {
		defer b.Release()
		h := w.Header()
		h.Set("Content-Type", "application/x-tar")
		h.Set("Trailer", BackupError)
		w.WriteHeader(http.StatusOK)
		c := http.NewResponseController(w)
		// A backup may take longer than any other request. The writer's deadline moves; the
		// reader's would end the request although there is nothing to read.
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			h.Set(BackupError, err.Error())
			return
		}
		if err := b.Write(q.http.Context(), &moving{w, c}); err != nil {
			h.Set(BackupError, strings.Join(strings.Fields(err.Error()), " "))
		}
	})}, nil
}

func fromLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// moving is an answer that may take as long as it likes, while it is taken.
type moving struct {
	http.ResponseWriter
	c *http.ResponseController
}

func (m *moving) Write(p []byte) (int, error) {
	if err := m.c.SetWriteDeadline(time.Now().Add(backupStall)); err != nil {
		return 0, err
	}
	return m.ResponseWriter.Write(p)
}
