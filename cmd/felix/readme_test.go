package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documentCommands are the indented lines of a section of a document.
func documentCommands(t *testing.T, document, title string) []string {
	t.Helper()
	raw, err := os.ReadFile("../../" + document)
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(raw), "## "+title+"\n")
	require.True(t, ok, "%s has no section %q", document, title)
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, strings.TrimSpace(command))
		}
	}
	require.NotEmpty(t, lines)
	return lines
}

// What a newcomer types, as it stands in the README: every line works, with no
// other flag, and the record comes back.
func TestReadmeFiveMinutes(t *testing.T) {
	s := newShell(t)
	var broker *serving
	var output strings.Builder
	for _, line := range documentCommands(t, "README.md", "The first five minutes") {
		switch line {
		case "go build -o felix ./cmd/felix":
			// This program is what that builds.
			continue
		case "./felix serve":
			// Other tests run at the same time, and the disk may be nearly full.
			broker = s.serve()
			continue
		}
		require.True(t, strings.HasPrefix(line, "./felix "), "the README has %q, which is no felix command", line)
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir, cmd.Env = s.dir, s.env
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", line, out)
		output.Write(out)
	}
	require.NotNil(t, broker, "the README serves nothing")
	require.Contains(t, output.String(), "hello")
	require.Contains(t, output.String(), "a record with a key")
	require.Contains(t, output.String(), "signed in")
	require.Contains(t, output.String(), "0:0:1 send the invoice")
	require.NoError(t, broker.Stop())
}

// The two commands that the README begins with are the ones it must not lose.
func TestReadmeCommands(t *testing.T) {
	raw, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, line := range []string{"    go run ./cmd/felix serve\n", "    go test ./...\n"} {
		require.Equal(t, 1, strings.Count(string(raw), line), line)
	}
}

// The default that the README states is the program's.
func TestReadmeStatesTheDefaultWindow(t *testing.T) {
	s := newShell(t)
	out := s.ok("config")
	require.Regexp(t, `storage\.fsync_mode +periodic +default`, out)
	require.Regexp(t, `storage\.fsync_interval +250ms +default`, out)
	raw, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(raw), "| `periodic` (the default) | every 250 ms |")
}
