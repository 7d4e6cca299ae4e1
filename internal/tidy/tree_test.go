package tidy

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/felixlog/felix"
)

// walk visits the files of the tree with one of the suffixes; there must be some.
func walk(t *testing.T, visit func(name string, text []byte), suffixes ...string) {
	t.Helper()
	seen := 0
	require.NoError(t, Walk(root, func(name string, text []byte) { seen++; visit(name, text) }, suffixes...))
	require.NotZero(t, seen, "nothing found below %s", root)
}

func test(name string) bool { return strings.HasSuffix(name, "_test.go") }

// order is the height of each package. A package imports only what is below it;
// those of one height do not import one another.
var order = map[string]int{
	"storage/vfs": 0, "storage/segment": 10, "storage/internal": 15, "storage": 20,
	"wire":                30,
	"internal/projection": 40, "internal/dirlock": 40, "internal/strictjson": 40,
	"internal/stream": 50, "internal/queue": 50, "internal/cache": 50, "internal/counter": 50,
	"internal/meta":      60,
	"internal/child":     60,
	"internal/hangup":    60,
	"internal/replica":   70,
	"internal/archive":   75,
	"internal/partition": 80,
	"internal/broker":    90,
	"internal/auth":      100, "internal/config": 100, "internal/obs": 100, "internal/logtool": 100,
	"client":          105,
	"internal/server": 110, "internal/api": 110,
	"internal/node": 120,
	"cmd":           130,
}

// apart are the packages that only tests use.
var apart = []string{"internal/testkit", "internal/tidy", "internal/e2e", "internal/interop", "internal/soak"}

func below(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

// height finds a package, or the folder it lies in.
func height(pkg string) (int, string, bool) {
	for dir := pkg; dir != "."; dir = path.Dir(dir) {
		if h, ok := order[dir]; ok {
			return h, dir, true
		}
	}
	return 0, "", false
}

func isApart(pkg string) bool {
	for _, dir := range apart {
		if below(pkg, dir) {
			return true
		}
	}
	return false
}

func TestImportOrder(t *testing.T) {
	fset := token.NewFileSet()
	walk(t, func(name string, text []byte) {
		pkg := path.Dir(name)
		if test(name) || pkg == "." || isApart(pkg) {
			return
		}
		f, err := parser.ParseFile(fset, name, text, parser.ImportsOnly)
		require.NoError(t, err)
		at, home, ok := height(pkg)
		if !ok {
			t.Errorf("%s: package %s has no place in the order of imports", name, pkg)
			return
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			target, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			to, dir, ok := height(target)
			switch {
			case isApart(target):
				t.Errorf("%s imports %s, which is for tests", name, target)
			case !ok:
				t.Errorf("%s imports %s, which has no place in the order", name, target)
			case home == "client" && target != "wire":
				t.Errorf("%s: client imports wire alone, not %s", name, target)
			case home == "wire" && dir != home:
				t.Errorf("%s: wire imports nothing of ours, not %s", name, target)
			case dir != home && to >= at:
				t.Errorf("%s imports %s, which is not below %s", name, target, pkg)
			}
		}
	}, ".go")
}

func TestFormatted(t *testing.T) {
	walk(t, func(name string, text []byte) {
		want, err := format.Source(text)
		require.NoError(t, err, name)
		if !bytes.Equal(want, text) {
			t.Errorf("%s: run gofmt", name)
		}
	}, ".go")
}

// Most lines a file may have: past it, it owns more than one thing.
const (
	mostLines     = 700
	mostTestLines = 1200
)

func TestFileSizes(t *testing.T) {
	walk(t, func(name string, text []byte) {
		most := mostLines
		if test(name) || isApart(path.Dir(name)) {
			most = mostTestLines
		}
		if n := bytes.Count(text, []byte("\n")); n > most {
			t.Errorf("%s has %d lines, at most %d: split it by what it owns", name, n, most)
		}
	}, ".go")
}

const sleeps = "a test that sleeps"

// Written in pieces, so that this file does not hold them itself.
var forbidden = []struct {
	what  string
	re    *regexp.Regexp
	files func(name string) bool
}{
	{"a path of some machine", regexp.MustCompile(`/wo` + `rk/|/tm` + `p/[a-z]|/ro` + `ot/|/ho` + `me/[a-z]`), func(name string) bool { return name != "internal/tidy/tree_test.go" }},
	{"unfinished work", regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`), func(string) bool { return true }},
	{"a test that may not run", regexp.MustCompile(`\bt\.Ski` + `p`), test},
	{sleeps, regexp.MustCompile(`time\.Sle` + `ep\(`), test},
	{"a test that drops an error", regexp.MustCompile(`(?m)^\s*_ = e` + `rr$`), test},
	{"panic as control flow", regexp.MustCompile(`pan` + `ic\("`), func(name string) bool {
		return strings.HasSuffix(name, ".go") && !test(name) && !isApart(path.Dir(name))
	}},
	{"a gate that cannot fail", regexp.MustCompile(`\|\| *tr` + `ue|set \+` + `e`), func(name string) bool { return name == ".ci/run" || name == "Makefile" }},
}

func TestForbiddenWords(t *testing.T) {
	walk(t, func(name string, text []byte) {
		for _, f := range forbidden {
			if !f.files(name) {
				continue
			}
			// In a bubble sleeping only moves its clock.
			if f.what == sleeps && bytes.Contains(text, []byte(`"testing/synctest"`)) {
				continue
			}
			for i, line := range bytes.Split(text, []byte("\n")) {
				if f.re.Match(line) {
					t.Errorf("%s:%d: %s: %s", name, i+1, f.what, bytes.TrimSpace(line))
				}
			}
		}
	}, ".go", ".md", ".py", ".sh", ".txtar", "Makefile", ".ci/run")
}

func TestEveryPackageExplainsItself(t *testing.T) {
	docs, code := map[string]bool{}, map[string]bool{}
	leaks, tests := map[string]bool{}, map[string]bool{}
	walk(t, func(name string, text []byte) {
		dir := path.Dir(name)
		switch {
		case test(name):
			tests[dir] = true
			if bytes.Contains(text, []byte("leak.")) {
				leaks[dir] = true
			}
		case path.Base(name) == "doc.go":
			docs[dir] = true
			code[dir] = true
		default:
			code[dir] = true
		}
	}, ".go")
	for dir := range code {
		if !docs[dir] {
			t.Errorf("%s has no doc.go", dir)
		}
	}
	for dir := range tests {
		if !leaks[dir] && !isApart(dir) {
			t.Errorf("%s: its tests do not look for leaked goroutines", dir)
		}
	}
}

// A claim in a document names the test behind it; when that test is gone, so is
// the claim.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	have := map[string]bool{}
	walk(t, func(name string, text []byte) {
		if !test(name) {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				have[fn.Name.Name] = true
			}
		}
	}, "_test.go")
	cited, err := Citations(root)
	require.NoError(t, err)
	require.NotEmpty(t, cited, "no document names a test")
	require.NotContains(t, cited, "TestMain", "it never reports a pass")
	for name, where := range cited {
		if !have[name] {
			t.Errorf("%s names %s, which is no test", where[0], name)
		}
	}
}

var required = regexp.MustCompile(`(?m)^\t([^\s/]+\.[^\s]+) v`)

// Every module that our own code imports has its line, with the reason for it.
func TestDependenciesAreExplained(t *testing.T) {
	explained, err := os.ReadFile(filepath.Join(root, "docs", "decisions", "dependencies.md"))
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	var modules []string
	for _, m := range required.FindAllSubmatch(mod, -1) {
		modules = append(modules, string(m[1]))
	}
	require.NotEmpty(t, modules)
	used := map[string]bool{}
	fset := token.NewFileSet()
	walk(t, func(name string, text []byte) {
		f, err := parser.ParseFile(fset, name, text, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			best := ""
			for _, m := range modules {
				if below(imported, m) && len(m) > len(best) {
					best = m
				}
			}
			if best != "" {
				used[best] = true
			}
		}
	}, ".go")
	for m := range used {
		if !bytes.Contains(explained, []byte("`"+m+"`")) {
			t.Errorf("docs/decisions/dependencies.md has no line for %s", m)
		}
	}
}
