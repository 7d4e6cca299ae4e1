package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// typed runs the lines of a document in one shell after the other, as they stand.
func (s *shell) typed(lines []string) string {
	s.t.Helper()
	script := "set -e\n"
	for _, line := range lines {
		if line == "felix serve" {
			continue
		}
		script += line + "\n"
	}
	cmd := exec.CommandContext(s.t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = s.dir, append(s.env, "PATH="+s.dir+":/usr/bin:/bin")
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s\n%s", script, out)
	return string(out)
}

// A tenant is made, given a namespace and a token, and used as docs/operations.md says.
func TestANewTenantAsDocumented(t *testing.T) {
	s := newShell(t)
	s.serve()
	out := s.typed(documentCommands(t, "docs/operations.md", "A tenant of its own"))
	require.Contains(t, out, "\ntheirs\n")

	// The token of the document is acme's and no more: its tenant, and what it was given.
	s.felix("stream", "info", "orders", "-n", "payments")
	require.Equal(t, exitMissing, s.exit, "the tenant of the context has got it")
	_, errs := s.felix("stream", "create", "more", "--tenant", "acme", "-n", "payments", "--controlplane-token-file", "acme.token")
	require.Equal(t, exitRefused, s.exit, errs)
	_, errs = s.felix("pub", "orders", "x", "--tenant", "acme", "-n", "payments", "--token-file", "acme.token")
	require.Equal(t, exitOK, s.exit, errs)
	_, errs = s.felix("group", "rm", "orders", "g", "--yes", "--tenant", "acme", "-n", "payments", "--token-file", "acme.token")
	require.Equal(t, exitRefused, s.exit, errs)
}

// A tenant that has no key here is said to have none, before a broker is asked.
func TestATenantWithoutKeys(t *testing.T) {
	s := newShell(t)
	s.serve()
	for _, args := range [][]string{{"stream", "ls"}, {"pub", "orders", "x"}, {"token", "mint"}} {
		_, errs := s.felix(append(args, "--tenant", "nobody")...)
		require.Equal(t, exitUsage, s.exit, errs)
		require.Contains(t, errs, "no signing key of tenant nobody in ")
		require.Contains(t, errs, "felix tenant create nobody")
	}
	// Who has a token needs no key.
	_, errs := s.felix("stream", "ls", "--tenant", "nobody", "--controlplane-token", "x")
	require.Equal(t, exitRefused, s.exit, errs)
}

// Commands do not lock themselves out of their broker unless they are told to.
func TestTheTenantOfTheCommandsIsKept(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("tenant", "create", "acme")
	s.ok("stream", "create", "orders", "--durable")
	for _, args := range [][]string{{"default"}, {"default", "--tenant", "acme"}, {"acme", "--tenant", "acme"}} {
		_, errs := s.felix(append([]string{"tenant", "rm", "--yes"}, args...)...)
		require.Equal(t, exitUsage, s.exit, "%v: %s", args, errs)
		require.Contains(t, errs, "--force")
		require.Contains(t, errs, "signing keys would go")
	}
	s.ok("stream", "info", "orders")
	s.ok("tenant", "rm", "acme", "--yes")

	s.ok("tenant", "rm", "default", "--yes", "--force")
	s.felix("stream", "ls")
	require.NotZero(t, s.exit)
	// What the refusal says of a start holds.
	require.NoError(t, b.Stop())
	s.serve()
	require.False(t, strings.Contains(s.ok("stream", "ls"), "orders"))
	s.ok("stream", "create", "orders", "--durable")
}
