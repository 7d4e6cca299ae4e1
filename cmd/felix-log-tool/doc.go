// Command felix-log-tool is `felix log` by itself: offline work on a shard's
// directory. Exit codes: 0 done, 1 anything else, damage included.
package main
