package sim

import "testing"

// TestAcknowledgementTable goes through the table "what an acknowledgement survives" cell
// by cell, under power cuts of one and of all, kills and partitions. What the cell
// promises is checked record by record (checker.allowed, checker.leaderLoss); the losses
// it allows must happen in some run, or the check would prove nothing.
func TestAcknowledgementTable(t *testing.T) {
	for _, c := range []struct {
		cell   string
		losses bool // the cell allows losses, and some must be seen
	}{
		{"leader-none", true},
		{"leader-periodic", true},
		{"leader-on_commit", true}, // not by power cuts: with the loss of the node
		{"quorum-none", true},
		{"quorum-periodic", true},
		{"quorum-on_commit", false},
	} {
		t.Run(c.cell, func(t *testing.T) {
			t.Parallel()
			var total Stats
			for seed := uint64(1); seed <= 25; seed++ {
				o := Options{Seed: seed, Memory: true, Profile: c.cell}
				res := Run(o)
				add(&total, &res.Stats)
				if res.Violation != nil {
					t.Errorf("seed %d: %v\n  replay: %s", seed, res.Violation, ReplayCommand(o, nil))
				}
			}
			judged(t, &total)
			if total.Acked == 0 || total.Elections < 25 {
				t.Errorf("nothing was put to the test: %+v", total)
			}
			if c.losses != (total.AllowedLosses > 0) {
				t.Errorf("%d losses that the cell allows; want some: %t", total.AllowedLosses, c.losses)
			}
		})
	}
}
