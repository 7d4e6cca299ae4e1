package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
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
	{replica.NamePlace, "churn", 4},
	{replica.NameGeneration, "alike", 1},
	{replica.AnswerDurable, "slow", 41},
	{replica.AnswerVerified, "slow", 238},
	{replica.CompareOverlap, "churn", 11},
	{replica.PersistGeneration, "churn", 95},
	{replica.RefuseOlder, "churn", 12},
	{replica.NewGeneration, "churn", 1},
	{replica.ResignOnFailure, "churn", 30},
	{replica.GenerationFromLog, "churn", 13},
	{replica.SetInTransaction, "split", 17},
	{replica.FenceMajority, "churn", 7},
	{replica.AdoptFurthest, "churn", 1},
	{replica.FurthestByGeneration, "churn", 13},
	{replica.CutDivergent, "churn", 66},
	{replica.ServeAfterStart, "cache", 5},
	{replica.CommitOwnGeneration, "relay", 11},
	{replica.FenceAllLogs, "churn", 23},
	{replica.ClampPositions, "caught", 3},
	{replica.CutWhereDiffers, "churn", 2},
	{replica.CopyCut, "churn", 11},
	{replica.ForgetfulVote, "lazy", 13},
	{replica.OwnAssignment, "sets", 17},
	{replica.OneAtATime, "split", 5},
	{replica.JointMajority, "split", 75},
	{replica.LevelFirst, "split", 130},
	{replica.ReadersStop, "churn", 13},
	{replica.BoundUnshipped, "churn", 14},
	{replica.BoundUnshippedBytes, "bytes", 4},
	{replica.ReadRound, "cache", 244},
	{replica.ConfirmRefusal, "lease", 673},
	{replica.LeaseHeld, "lease", 1},
	{replica.LeaseMargin, "margin", 16},
	{replica.LeaseAfterOpening, "margin", 685},
	{replica.UnknownOutcome, "churn", 6},
	{replica.TrimBelowMark, "trims", 4},
	{replica.CountListed, "wipe", 275},
	{replica.NameChecksum, "regiven", 1},
	{replica.UnknownIsLearner, "unsaid", 2},
	{replica.KeepCommitted, "outside", 44},
	{replica.ShortIsForgetful, "lapse", 12},
	{replica.DoubtUntilLevel, "lapse", 17},
}

// TestEveryClauseHasAMutation wants each clause in the table once.
func TestEveryClauseHasAMutation(t *testing.T) {
	count := map[replica.Rule]int{}
	for _, m := range mutations {
		count[m.rule]++
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
	replica.NameGeneration: "alike", replica.AnswerDurable: "slow", replica.AnswerVerified: "slow", replica.ServeAfterStart: "cache", replica.ClampPositions: "caught",
	replica.ForgetfulVote: "lazy", replica.OwnAssignment: "sets", replica.BoundUnshippedBytes: "bytes", replica.ReadRound: "cache", replica.ConfirmRefusal: "lease",
	replica.LeaseHeld: "lease", replica.LeaseMargin: "margin", replica.LeaseAfterOpening: "margin", replica.TrimBelowMark: "trims", replica.CountListed: "wipe",
	replica.NameChecksum: "regiven", replica.UnknownIsLearner: "unsaid", replica.KeepCommitted: "outside", replica.ShortIsForgetful: "lapse", replica.DoubtUntilLevel: "lapse",
	replica.CommitOwnGeneration: "relay", replica.SetInTransaction: "split", replica.OneAtATime: "split", replica.JointMajority: "split", replica.LevelFirst: "split",
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

// search finds the first seed that shows the clause, as many at a time as there are
// processors.
func search(rule replica.Rule, profile string) bool {
	var mu sync.Mutex
	next, end := *fromFlag, *fromFlag+uint64(*searchFlag)
	first, row := end, ""
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				stop := seed >= first
				mu.Unlock()
				if stop {
					return
				}
				o := Options{Memory: *memoryFlag, Profile: profile, Seed: seed, Rules: replica.Rules(0).Without(rule)}
				v := Run(o).Violation
				if v == nil || v.Invariant == "progress" {
					continue
				}
				o.Rules = 0
				if v := Run(o).Violation; v != nil {
					fmt.Printf("WRONG with every clause: %v\n  replay: %s\n", v, ReplayCommand(o, nil))
					continue
				}
				mu.Lock()
				if seed < first {
					m := mutation{rule, profile, seed}
					first, row = seed, m.row(v)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if first == end {
		return false
	}
	fmt.Printf("FOUND %-22s {%q, %d}, %s\n", rule, profile, first, row)
	return true
}
