// Command cited reads what `go test -json` writes, prints what a person wants of it, and
// fails when a test that a document names did not run and pass:
//
//	go test ./... -json | go run ./internal/tidy/cited
//
// Printed is a line for each package, and all the output of tests and packages that
// failed or were not built. A test of one name in several packages must pass wherever
// it runs, and run somewhere. The exit status says only whether the citations hold, or
// whether the input could be read: that of the tests is go's own, so the caller sets
// pipefail.
package main
