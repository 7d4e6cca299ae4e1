// Package child runs felix as a child process: for commands that need a broker of their
// own, and for tests that load one.
//
// A child says what it does on its standard error, one JSON object a line, as
// `felix serve --log-format json` does; the line whose msg is "serving" names its
// addresses. The last lines are kept for the error of a child that fails.
package child
