package hangup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/leak"
)

// asProgram makes this test program one that is hung up before its main function begins,
// and then takes hang-ups, or releases them.
const asProgram = "TEST_HANGUP_AS"

// Before any main function, as a package's variable is.
var _ = func() error {
	if os.Getenv(asProgram) == "" {
		return nil
	}
	return syscall.Kill(os.Getpid(), syscall.SIGHUP)
}()

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "broker":
		hangups, stop := Take()
		fmt.Println("took", <-hangups)
		stop()
	case "command":
		Release()
		fmt.Println("went on")
	default:
		// Under nohup hang-ups are ignored, and children inherit that; not so if they are taken.
		Take()
		leak.Main(m)
	}
}

func program(as string) (string, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"="+as)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A hang-up that comes before main is taken by a broker, and ends everything else.
func TestHangUpBeforeMain(t *testing.T) {
	out, err := program("broker")
	require.NoError(t, err, out)
	require.Contains(t, out, "took hangup")

	out, err = program("command")
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v: %s", err, out)
	require.NotContains(t, out, "went on")
	status := exit.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "%v: %s", err, out)
	require.Equal(t, syscall.SIGHUP, status.Signal())
}
