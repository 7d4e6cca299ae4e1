package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
)

// someBackups makes backups of a few bytes.
type someBackups struct {
	refuse, fail error
	secrets      bool
	released     int
}

func (s *someBackups) Backup(_ context.Context, secrets bool) (Backup, error) {
	if s.refuse != nil {
		return nil, s.refuse
	}
	s.secrets = secrets
	return s, nil
}

func (s *someBackups) Write(_ context.Context, w io.Writer) error {
	if _, err := io.WriteString(w, "the backup"); err != nil {
		return err
	}
	return s.fail
}

func (s *someBackups) Release() { s.released++ }

func TestBackupIsForOperators(t *testing.T) {
	f := newFixture(t)
	b := &someBackups{}
	f.server.Open(Backend{Catalog: f.catalog, Keys: f.keys, Streams: &f.streams, Backups: b})
	operator := f.token("default", auth.AudienceAPI, "node.manage:cluster:*")
	both := f.token("default", auth.AudienceAPI, "node.manage:cluster:*", admin)
	for _, c := range []struct {
		token, query string
		status       int
		phrase       string
	}{
		{"", "", 401, "Bearer"},
		{f.token("default", auth.AudienceBroker, "node.manage:cluster:*"), "", 401, "token"},
		{f.token("default", auth.AudienceAPI, auth.AllPermissions("default")...), "", 403, "node.manage on cluster:*"},
		{operator, "?secrets=true", 403, "tenant.manage on cluster:*"},
		{both, "?secrets=true", 400, "https"}, // the recorder's caller is on another machine
		{both, "?secrets=yes", 400, "neither true nor false"},
	} {
		status, answer := f.do("GET", "/v1/backup"+c.query, c.token, "")
		require.Equal(t, c.status, status, answer)
		require.Contains(t, answer["message"], c.phrase)
	}
	require.Zero(t, b.released, "a backup was made")
	for err, status := range map[error]int{ErrBackupRuns: 409, ErrNoBackup: 400} {
		b.refuse = err
		got, answer := f.do("GET", "/v1/backup", operator, "")
		require.Equal(t, status, got)
		require.Equal(t, err.Error(), answer["message"])
	}
}

func TestBackupSaysWhyItEnded(t *testing.T) {
	f := newFixture(t)
	b := &someBackups{}
	f.server.Open(Backend{Catalog: f.catalog, Keys: f.keys, Streams: &f.streams, Backups: b})
	s := httptest.NewServer(f.server)
	defer s.Close()
	get := func() (string, http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/backup?secrets=true", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+f.token("default", auth.AudienceAPI, "node.manage:cluster:*", admin))
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		require.Equal(t, 200, resp.StatusCode)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return string(body), resp.Trailer
	}
	body, trailer := get()
	require.Equal(t, "the backup", body)
	require.Empty(t, trailer.Get(BackupError))
	require.True(t, b.secrets)
	b.fail = errors.New("stream orders\nwas deleted")
	_, trailer = get()
	require.Equal(t, "stream orders was deleted", trailer.Get(BackupError))
	require.Equal(t, 2, b.released)
}
