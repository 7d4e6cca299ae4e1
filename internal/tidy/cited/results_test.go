package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run of go itself over a module in which each thing happens once.
func TestCitedTestsMustRunAndPass(t *testing.T) {
	c := exec.Command("go", "test", "-count=1", "-json", "./...")
	c.Dir = "testdata/module"
	c.Env = append(c.Environ(), "GOFLAGS=", "GOWORK=off")
	run, err := c.Output()
	var failed *exec.ExitError
	require.True(t, errors.As(err, &failed), "the module's tests fail: %v", err)

	var printed bytes.Buffer
	all, err := read(bytes.NewReader(run), &printed)
	require.NoError(t, err)
	require.Contains(t, printed.String(), "the reason of the failure")
	require.Contains(t, printed.String(), "undefined: nobody")
	require.Contains(t, printed.String(), "last words")
	require.Contains(t, printed.String(), "FAIL\texample.test/module\t")
	require.NotContains(t, printed.String(), "a word of a test that passes")

	where := []string{"docs/a.md:1", "docs/b.md:2"}
	cited := map[string][]string{}
	for _, name := range []string{"TestPasses", "FuzzSeeds", "TestFails", "TestIsSkipped", "TestIsSkippedInPart", "TestIsNotBuilt", "TestIsCutShort", "TestIsGone"} {
		cited[name] = where
	}
	require.Equal(t, []string{
		"docs/a.md:1, docs/b.md:2: TestFails failed in example.test/module",
		"docs/a.md:1, docs/b.md:2: TestIsCutShort did not end in example.test/module/cut",
		"docs/a.md:1, docs/b.md:2: TestIsGone did not run",
		"docs/a.md:1, docs/b.md:2: TestIsNotBuilt did not run",
		"docs/a.md:1, docs/b.md:2: TestIsSkipped was skipped, or a part of it, in example.test/module",
		"docs/a.md:1, docs/b.md:2: TestIsSkippedInPart was skipped, or a part of it, in example.test/module",
	}, judge(cited, all))
}

func TestOutputOfARun(t *testing.T) {
	const run = `go: downloading something
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
{"Action":"output","Package":"n","Output":"?   \tn\t[no test files]\n"}
{"Action":"skip","Package":"n"}
{"Action":"run","Package":"q","Test":"TestA"}
{"Action":"output","Package":"q","Test":"TestA","Output":"panic: x\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q"}
`
	var printed strings.Builder
	all, err := read(strings.NewReader(run), &printed)
	require.NoError(t, err)
	require.Equal(t, "go: downloading something\nok  \tp\t0.1s\n?   \tn\t[no test files]\nFAIL\tq\t0.1s\npanic: x\n", printed.String())
	// It passed in p; that does not make up for q, where it did not end.
	require.Equal(t, []string{"d:1: TestA did not end in q"}, judge(map[string][]string{"TestA": {"d:1"}}, all))
	require.Empty(t, judge(map[string][]string{}, all))
}
