package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAFlagWinsOverVariablesOfAnyKind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("from-the-file"), 0o600))
	for _, c := range []struct {
		flags clientFlags
		want  string
	}{
		{clientFlags{}, "from-the-variable"},
		{clientFlags{tokenFile: file, httpTokenF: file}, "from-the-file"},
		{clientFlags{token: "from-the-flag", httpToken: "from-the-flag", tokenFile: file}, "from-the-flag"},
	} {
		e := &environment{environ: []string{"HOME=" + t.TempDir(), "FELIX_AUTH_TOKEN=from-the-variable", "FELIX_CONTROLPLANE_TOKEN=from-the-variable"}, opts: c.flags}
		id, err := e.identity()
		require.NoError(t, err)
		token, err := id.brokerToken()
		require.NoError(t, err)
		require.Equal(t, c.want, token)
		token, err = id.apiToken()
		require.NoError(t, err)
		require.Equal(t, c.want, token)
	}
	e := &environment{environ: []string{"HOME=" + t.TempDir(), "FELIX_AUTH_TOKEN=from-the-variable"}, opts: clientFlags{signingKey: "nowhere.key"}}
	id, err := e.identity()
	require.NoError(t, err)
	_, err = id.brokerToken()
	require.ErrorContains(t, err, "nowhere.key")
}

// A peer that takes the connection and says nothing.
func TestTimeoutBoundsARequest(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	s := newShell(t)
	least := time.Hour
	for try := 0; try < 10 && least > 9*time.Second; try++ { // or the machine is busy
		began := time.Now()
		_, errs := s.felix("cache", "get", "k", "x", "--brokers", l.Addr().String(), "--token", "x", "--timeout", "200ms")
		require.Equal(t, exitUnreachable, s.exit, errs)
		least = min(least, time.Since(began))
	}
	require.Less(t, least, 9*time.Second, "the client's own bound of a connection is 10 s")
	_, errs := s.felix("cache", "get", "k", "x", "--brokers", l.Addr().String(), "--token", "x", "--timeout", "0s")
	require.Equal(t, exitUsage, s.exit, errs)
}

func TestSeekToAnOffsetIsOfOneShard(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable", "--shards", "2")
	s.ok("pub", "orders", "x", "--shard", "0")
	_, errs := s.felix("group", "seek", "orders", "g", "--from", "1")
	require.Equal(t, exitUsage, s.exit)
	require.Contains(t, errs, "give --shard")
	require.Contains(t, s.ok("group", "seek", "orders", "g", "--from", "1", "--shard", "0"), "1")
}

func TestShardActions(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable", "--shards", "2")
	s.ok("cache", "create", "sessions")
	require.Contains(t, s.ok("stream", "reopen", "orders"), "active")
	require.Contains(t, s.ok("cache", "reopen", "sessions"), "active")
	require.Contains(t, s.ok("stream", "retain", "orders"), "segments removed")
	_, errs := s.felix("stream", "reopen", "nothing")
	require.Equal(t, exitMissing, s.exit, errs)
}
