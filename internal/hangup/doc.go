// Package hangup takes the hang-ups of a process from before its main function on, since
// one that nobody takes ends the process: whoever starts a broker and has it read its
// certificates again at once would end it. It imports nothing but the standard library's
// os/signal, so that it is among the first packages to be initialised.
//
// A command that is no broker gives them back with [Release], and one that came until then
// does what it would have done.
//
// Importing it starts os/signal's goroutine, which is the price of coming first. It has no
// errors.
package hangup
