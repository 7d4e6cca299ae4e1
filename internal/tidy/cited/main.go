package main

import (
	"fmt"
	"os"

	"github.com/felixlog/felix/internal/tidy"
)

func main() {
	if len(os.Args) != 1 {
		fmt.Fprintln(os.Stderr, "usage, in the root of the tree: go test ./... -json | go run ./internal/tidy/cited")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	cited, err := tidy.Citations(".")
	if err != nil {
		return fmt.Errorf("read the documents: %w", err)
	}
	if len(cited) == 0 {
		return fmt.Errorf("no document below this directory names a test; run it in the root of the tree")
	}
	results, err := read(os.Stdin, os.Stdout)
	if err != nil {
		return fmt.Errorf("read the results of the tests: %w", err)
	}
	broken := judge(cited, results)
	for _, line := range broken {
		fmt.Println(line)
	}
	if len(broken) > 0 {
		return fmt.Errorf("%d of %d tests that documents name did not run and pass", len(broken), len(cited))
	}
	fmt.Printf("%d tests that documents name ran and passed\n", len(cited))
	return nil
}
