package sim

import (
	"flag"
	"fmt"
	"testing"

	"github.com/felixlog/felix/internal/replica"
)

var searchFlag = flag.Int("sim.search", 0, "for each clause, or those of -sim.off: look for a seed that fails without it, among so many")

// TestSearchMutations looks for seeds for the table of docs/replication.md. It runs only
// when asked: it takes minutes.
func TestSearchMutations(t *testing.T) {
	if *searchFlag == 0 {
		return // nothing was asked for
	}
	only := options(t).Rules
	for _, rule := range replica.AllRules() {
		if only != 0 && only.Hold(rule) {
			continue
		}
		o := Options{Memory: *memoryFlag, Rules: replica.Rules(0).Without(rule)}
		found := false
		for seed := *fromFlag; seed < *fromFlag+uint64(*searchFlag); seed++ {
			o.Seed = seed
			res := Run(o)
			if res.Violation == nil || res.Violation.Invariant == "progress" {
				continue
			}
			fmt.Printf("FOUND %-22s seed %4d %-22s %s\n", rule, seed, res.Violation.Invariant, res.Violation.Detail)
			found = true
			break
		}
		if !found {
			fmt.Printf("NONE  %-22s in %d seeds\n", rule, *searchFlag)
		}
	}
}
