package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/leak"
)

// role makes of this test binary the child that a test needs.
const role = "CHILD_TEST_ROLE"

func TestMain(m *testing.M) {
	as := os.Getenv(role)
	if as == "" {
		leak.Main(m)
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, `not JSON, and "serving" is in it`)
	fmt.Fprintln(os.Stderr, `{"msg":"starting"}`)
	if as == "refuses" {
		fmt.Fprintln(os.Stderr, `{"msg":"the port is taken"}`)
		os.Exit(3)
	}
	if as == "mute" {
		<-stop
		os.Exit(0)
	}
	for i := range 2 * keptLines {
		fmt.Fprintf(os.Stderr, "{\"line\":%d}\n", i)
	}
	fmt.Fprintln(os.Stderr, `{"msg":"serving","clients":"127.0.0.1:5","http":"http://127.0.0.1:6"}`)
	<-stop
	code, err := strconv.Atoi(as)
	if err != nil {
		panic(err)
	}
	os.Exit(code)
}

func command(t *testing.T, as string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), role+"="+as)
	return cmd
}

func TestServing(t *testing.T) {
	var heard []string
	p, err := Start(t.Context(), command(t, "0"), func(line []byte) { heard = append(heard, string(line)) })
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:5", p.Clients)
	require.Equal(t, "http://127.0.0.1:6", p.HTTP)
	require.Positive(t, p.Pid())
	require.NoError(t, p.Stop())
	require.ErrorContains(t, p.Err(), "by itself")
	require.Len(t, heard, 2*keptLines+3)
	require.NotContains(t, p.Tail(), `{"line":1}`, "only the last lines are kept")
	require.Contains(t, p.Tail(), `"serving"`)
	require.NoError(t, p.Stop(), "it has ended, with status 0")
	require.NoError(t, p.Kill())
}

func TestEndings(t *testing.T) {
	_, err := Start(t.Context(), command(t, "refuses"), nil)
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "the port is taken")

	p, err := Start(t.Context(), command(t, "7"), nil)
	require.NoError(t, err)
	require.ErrorContains(t, p.Stop(), "exit status 7")

	p, err = Start(t.Context(), command(t, "0"), nil)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	require.ErrorContains(t, p.Err(), "killed")

	_, err = Start(t.Context(), exec.Command("/no/such/program"), nil)
	require.ErrorContains(t, err, "start broker")
}

// A child that never serves is ended with the one who waits for it.
func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Start(ctx, command(t, "mute"), func([]byte) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
}
