package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/felixlog/felix/internal/replica"
)

var searchFlag = flag.Int("sim.search", 0, "for each clause, or those of -sim.off: look for a seed that fails without it, among so many")

// mutation is a clause with the seed that shows it is needed: without the clause the run
// violates an invariant, with it none. Logs are in memory.
type mutation struct {
	rule    replica.Rule
	profile string
	seed    uint64
}

// mutations is the table of docs/replication.md. TestSearchMutations finds the seeds
// anew when the protocol or what profiles draw has changed.
var mutations = []mutation{
	{replica.NamePlace, "churn", 1},
	{replica.NameGeneration, "alike", 1},
	{replica.AnswerDurable, "slow", 2},
	{replica.AnswerVerified, "slow", 143},
	{replica.CompareOverlap, "churn", 2},
	{replica.PersistGeneration, "churn", 95},
	{replica.RefuseOlder, "churn", 21},
	{replica.NewGeneration, "churn", 1},
	{replica.ResignOnFailure, "churn", 34},
	{replica.GenerationFromLog, "churn", 146},
	{replica.SetInTransaction, "sets", 636},
	{replica.FenceMajority, "churn", 12},
	{replica.AdoptFurthest, "churn", 2},
	{replica.FurthestByGeneration, "churn", 146},
	{replica.CutDivergent, "churn", 146},
	{replica.ServeAfterStart, "cache", 3},
	{replica.FenceAllLogs, "churn", 35},
	{replica.ClampPositions, "caught", 10},
	{replica.KeepCommitted, "churn", 2},
	{replica.CopyCut, "churn", 2},
	{replica.ForgetfulVote, "lazy", 12},
	{replica.OwnAssignment, "sets", 7},
	{replica.OneAtATime, "unsure", 780},
	{replica.JointMajority, "joint", 11},
	{replica.LevelFirst, "sets", 211},
	{replica.ReadersStop, "churn", 13},
	{replica.BoundUnshipped, "churn", 14},
	{replica.ReadRound, "cache", 265},
	{replica.LeaseHeld, "lease", 1},
	{replica.LeaseMargin, "margin", 12},
	{replica.UnknownOutcome, "churn", 13},
	{replica.TrimBelowMark, "trims", 67},
	{replica.CountListed, "wipe", 25},
}

// scripted are the clauses whose mutation is a dialogue of package replica, in
// testdata/mutations there.
var scripted = []replica.Rule{replica.NameChecksum, replica.UnknownIsLearner, replica.CommitOwnGeneration}

// TestEveryClauseHasAMutation wants each clause in the table once.
func TestEveryClauseHasAMutation(t *testing.T) {
	count := map[replica.Rule]int{}
	for _, m := range mutations {
		count[m.rule]++
	}
	for _, r := range scripted {
		count[r]++
	}
	for _, r := range replica.AllRules() {
		if count[r] != 1 {
			t.Errorf("%v: %d mutations, want one", r, count[r])
		}
	}
}

// TestMutations replays the table: each seed must find its violation with the clause
// switched off and none with all clauses on, and the document must say what breaks.
func TestMutations(t *testing.T) {
	page, err := os.ReadFile("../../../docs/replication.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range scripted {
		if line := clauseRow(string(page), rule); !strings.Contains(line, "| script |") {
			t.Errorf("the row of %v in docs/replication.md must say that it is a script, and is\n  %s", rule, line)
		}
	}
	for _, m := range mutations {
		t.Run(m.rule.String(), func(t *testing.T) {
			t.Parallel()
			o := Options{Seed: m.seed, Profile: m.profile, Memory: true}
			if res := Run(o); res.Violation != nil {
				t.Errorf("with every clause: %v\n  replay: %s", res.Violation, ReplayCommand(o, nil))
			}
			o.Rules = o.Rules.Without(m.rule)
			res := Run(o)
			if res.Violation == nil {
				t.Fatalf("nothing breaks without the clause: search again (-run TestSearchMutations -sim.memory -sim.search=2000 -sim.off=%v)\n  replay: %s", m.rule, ReplayCommand(o, nil))
			}
			line := clauseRow(string(page), m.rule)
			if end := m.row(res.Violation); !strings.HasSuffix(line, end) {
				t.Errorf("the row of docs/replication.md must end\n  %s\nand is\n  %s", end, line)
			}
		})
	}
}

// clauseRow is the document's row for a clause.
func clauseRow(page string, rule replica.Rule) string {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| ") && strings.Contains(line, " | `"+rule.String()+"`: ") {
			return strings.TrimSuffix(line, "\n")
		}
	}
	return ""
}

// row is the end of the clause's row in the document.
func (m *mutation) row(v *Violation) string {
	return fmt.Sprintf("| `%s`, %d | %s: %s |", m.profile, m.seed, v.Invariant, v.Detail)
}

// bias is the profile under which a clause is missed soonest.
var bias = map[replica.Rule]string{
	replica.NameGeneration: "alike", replica.AnswerDurable: "slow", replica.AnswerVerified: "slow",
	replica.SetInTransaction: "sets", replica.ServeAfterStart: "cache", replica.ClampPositions: "caught", replica.CommitOwnGeneration: "chain",
	replica.ForgetfulVote: "lazy",
	replica.OwnAssignment: "sets", replica.OneAtATime: "unsure", replica.JointMajority: "joint", replica.LevelFirst: "sets",
	replica.ReadRound: "cache", replica.LeaseHeld: "lease", replica.LeaseMargin: "margin", replica.TrimBelowMark: "trims", replica.CountListed: "wipe",
}

// TestSearchMutations looks for seeds for the table. It runs only when asked: it takes
// minutes. What it prints goes into mutations and into the document.
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
		if !search(rule, profile) {
			fmt.Printf("NONE  %-22s %s in %d seeds\n", rule, profile, *searchFlag)
		}
	}
}

func search(rule replica.Rule, profile string) bool {
	o := Options{Memory: *memoryFlag, Profile: profile}
	for seed := *fromFlag; seed < *fromFlag+uint64(*searchFlag); seed++ {
		o.Seed, o.Rules = seed, replica.Rules(0).Without(rule)
		v := Run(o).Violation
		if v == nil || v.Invariant == "progress" {
			continue
		}
		o.Rules = 0
		if v := Run(o).Violation; v != nil {
			fmt.Printf("WRONG with every clause: %v\n  replay: %s\n", v, ReplayCommand(o, nil))
			continue
		}
		m := mutation{rule, profile, seed}
		fmt.Printf("FOUND %-22s {%q, %d}, %s\n", rule, profile, seed, m.row(v))
		return true
	}
	return false
}
