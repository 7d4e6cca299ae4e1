// Command felix is the broker and everything that talks to it: `felix serve`
// runs a broker, the other commands are its clients.
//
// The command only parses, calls and prints. Exit codes: 0 done, 1 anything
// else, 2 arguments or settings, 3 nothing reachable, 4 refused, 5 does not
// exist. With --json, records are one object a line, lists {"items":[...]}, and
// an error is {"error":"...","exit":N} on standard error.
package main
