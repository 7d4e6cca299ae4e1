package sim

import (
	"flag"
	"fmt"
	"testing"

	"github.com/felixlog/felix/internal/replica"
)

var searchFlag = flag.Int("sim.search", 0, "for each clause, or those of -sim.off: look for a seed that fails without it, among so many")

// bias is the profile under which a clause is missed soonest.
var bias = map[replica.Rule]string{
	replica.NameGeneration: "alike", replica.AnswerDurable: "slow", replica.UnknownIsLearner: "trims",
	replica.SetInTransaction: "sets", replica.ServeAfterStart: "cache", replica.ClampPositions: "caught", replica.CommitOwnGeneration: "chain", replica.ForgetfulVote: "lazy",
	replica.OwnAssignment: "sets", replica.OneAtATime: "sets", replica.JointMajority: "joint", replica.LevelFirst: "sets",
	replica.ReadRound: "cache", replica.LeaseHeld: "lease", replica.LeaseMargin: "lease", replica.TrimBelowMark: "trims", replica.CountListed: "wipe",
}

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
		profile := *profileFlag
		if profile == "" {
			if profile = bias[rule]; profile == "" {
				profile = "churn"
			}
		}
		o := Options{Memory: *memoryFlag, Profile: profile, Rules: replica.Rules(0).Without(rule)}
		found := false
		for seed := *fromFlag; seed < *fromFlag+uint64(*searchFlag); seed++ {
			o.Seed = seed
			res := Run(o)
			if res.Violation == nil || res.Violation.Invariant == "progress" {
				continue
			}
			fmt.Printf("FOUND %-22s %s seed %4d %-22s %s\n", rule, profile, seed, res.Violation.Invariant, res.Violation.Detail)
			found = true
			break
		}
		if !found {
			fmt.Printf("NONE  %-22s %s in %d seeds\n", rule, profile, *searchFlag)
		}
	}
}
