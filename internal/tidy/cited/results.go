package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// maxLine bounds one line of input, in bytes. A test's output comes in lines of its own,
// so that only a test which writes a line this long meets it.
const maxLine = 16 << 20

// event is a line of `go test -json` (see `go doc test2json`).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail, instead of Package
	Test       string
	Output     string
}

// outcome is what became of the tests of one name.
type outcome struct {
	passed, failed, skipped []string // packages
	unfinished              map[string]bool
}

// results are the outcomes by the name of the test; subtests count with their test.
type results map[string]*outcome

// read takes in the lines of a run and prints what a person wants of them: one line a
// package, and the output of what failed. What is no JSON is printed as it is.
func read(in io.Reader, out io.Writer) (results, error) {
	all := results{}
	held := map[[2]string][]string{} // output by package and test, until it is known whether it is wanted
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(out, lines.Text())
			continue
		}
		at := [2]string{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "output":
			held[at] = append(held[at], e.Output)
		case "run":
			if o := all.of(e.Test); o != nil {
				o.unfinished[e.Package] = true
			}
		case "pass", "fail", "skip":
			if e.Test == "" {
				endPackage(out, e, held)
				continue
			}
			if e.Action == "fail" {
				fmt.Fprint(out, strings.Join(held[at], ""))
			}
			delete(held, at)
			all.add(e)
		}
	}
	return all, lines.Err()
}

// endPackage prints the result of a package, with everything that is left when it failed:
// a panic or a timeout ends it in the middle of its tests.
func endPackage(out io.Writer, e event, held map[[2]string][]string) {
	own := [2]string{e.Package, ""}
	for _, line := range held[own] {
		if e.Action == "fail" || strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "? ") {
			fmt.Fprint(out, line)
		}
	}
	delete(held, own)
	left := slices.SortedFunc(maps.Keys(held), func(a, b [2]string) int { return strings.Compare(a[1], b[1]) })
	for _, at := range left {
		if at[0] != e.Package {
			continue
		}
		if e.Action == "fail" {
			fmt.Fprint(out, strings.Join(held[at], ""))
		}
		delete(held, at)
	}
}

// of is the outcome of a test, nil for a subtest.
func (r results) of(test string) *outcome {
	if test == "" || strings.Contains(test, "/") {
		return nil
	}
	o := r[test]
	if o == nil {
		o = &outcome{unfinished: map[string]bool{}}
		r[test] = o
	}
	return o
}

func (r results) add(e event) {
	top, _, sub := strings.Cut(e.Test, "/")
	// A subtest that was skipped leaves its test a pass: part of the claim was not looked at.
	if sub && e.Action != "skip" {
		return
	}
	o := r.of(top)
	switch e.Action {
	case "pass":
		o.passed = append(o.passed, e.Package)
	case "fail":
		o.failed = append(o.failed, e.Package)
	case "skip":
		if !slices.Contains(o.skipped, e.Package) {
			o.skipped = append(o.skipped, e.Package)
		}
	}
	if !sub {
		delete(o.unfinished, e.Package)
	}
}

// judge is a line for each cited test that did not run and pass everywhere it is.
func judge(cited map[string][]string, all results) []string {
	var broken []string
	for _, name := range slices.Sorted(maps.Keys(cited)) {
		o := all[name]
		var why string
		switch {
		case o == nil:
			why = "did not run"
		case len(o.failed) > 0:
			why = "failed in " + strings.Join(o.failed, ", ")
		case len(o.unfinished) > 0:
			why = "did not end in " + strings.Join(slices.Sorted(maps.Keys(o.unfinished)), ", ")
		case len(o.skipped) > 0:
			why = "was skipped, or a part of it, in " + strings.Join(o.skipped, ", ")
		case len(o.passed) == 0:
			why = "did not run"
		default:
			continue
		}
		broken = append(broken, fmt.Sprintf("%s: %s %s", strings.Join(cited[name], ", "), name, why))
	}
	return broken
}
