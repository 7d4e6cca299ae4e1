// Command felix-log-tool is `felix log` by itself: offline work on a shard's
// directory. Exit codes: 0 done, 2 a command line that is none, 1 anything else, damage
// included.
package main
