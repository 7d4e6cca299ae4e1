// Package crashtest holds the crash tests of package storage, from outside: only
// its exported surface, on disks that lose power, fail and lie.
//
// It has no code but tests. A model (model_test.go) knows of every record what may
// and what must be in the log; a script (script_test.go) drawn from a seed appends,
// seals, trims, truncates, closes and meets faults, with the log in Manual mode, so
// that a seed is one exact sequence of operations; at some operation the power goes
// or the process dies, the log is opened again, and what it holds is held against
// the model. A failing seed prints the command that replays it.
//
// The tests that take a rule of the log away (rules_test.go) show that these tests
// would notice its absence. The test of real processes (process_test.go) kills a
// child that appends, in every fsync mode.
//
// How much is run is set by FELIX_CRASH_SEEDS (seeds of the long scripts, from
// FELIX_CRASH_FROM on), FELIX_CRASH_ROUNDS (kills of real processes) and
// FELIX_CRASH_SEED (one seed, verbosely).
package crashtest
