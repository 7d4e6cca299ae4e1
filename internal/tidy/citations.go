package tidy

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Walk visits the files below root with one of the suffixes, their names relative to it
// and slash-separated. Data, build results and the checkout's own folders are left out.
func Walk(root string, visit func(name string, text []byte), suffixes ...string) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch base := path.Base(rel); {
			case base == "testdata", base == "out", base == "bin", base == "felix-data", base == "__pycache__", base == "venv":
				return fs.SkipDir
			case strings.HasPrefix(base, ".") && base != ".ci" && rel != ".":
				return fs.SkipDir
			}
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(rel, s) {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				visit(rel, text)
				break
			}
		}
		return nil
	})
}

var testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z]\w*`)

// Citations are the tests that the documents below root name, each with the places,
// file:line, that name it.
func Citations(root string) (map[string][]string, error) {
	cited := make(map[string][]string)
	err := Walk(root, func(name string, text []byte) {
		for i, line := range strings.Split(string(text), "\n") {
			for _, cite := range testName.FindAllString(line, -1) {
				if cite == "TestMain" || strings.HasPrefix(cite, "Benchmark") {
					continue // which is no test: it runs them, or measures
				}
				cited[cite] = append(cited[cite], fmt.Sprintf("%s:%d", name, i+1))
			}
		}
	}, ".md")
	return cited, err
}
