package sim

import (
	"fmt"
	"strings"

	"github.com/felixlog/felix/internal/replica"
)

// ReplayCommand is the one command that runs a seed again, with the faults kept.
func ReplayCommand(o Options, keep []int) string {
	cmd := fmt.Sprintf("go test ./internal/testkit/sim -run 'TestSeed$' -sim.seed=%d", o.Seed)
	if keep != nil {
		var s []string
		for _, i := range keep {
			s = append(s, fmt.Sprint(i))
		}
		cmd += " -sim.keep=" + strings.Join(s, ",")
		if len(s) == 0 {
			cmd += ","
		}
	}
	var off []string
	for _, r := range replica.AllRules() {
		if !o.Rules.Hold(r) {
			off = append(off, r.String())
		}
	}
	if len(off) > 0 {
		cmd += " -sim.off=" + strings.Join(off, ",")
	}
	if o.Profile != "" {
		cmd += " -sim.profile=" + o.Profile
	}
	if o.Memory {
		cmd += " -sim.memory"
	}
	return cmd
}

// Shrink runs a failing seed with ever fewer faults and returns the indices of those
// that are left, with the last violation. It runs at most budget times.
func Shrink(o Options, budget int) ([]int, *Violation) {
	first := Run(o)
	if first.Violation == nil {
		return nil, nil
	}
	var keep []int
	for i := range first.Shape.Faults {
		if first.Shape.Faults[i].At <= first.Violation.At {
			keep = append(keep, i)
		}
	}
	violation := first.Violation
	try := func(k []int) bool {
		if budget--; budget < 0 {
			return false
		}
		p := o
		p.Keep, p.Trace = append([]int{}, k...), nil
		if res := Run(p); res.Violation != nil && res.Violation.Invariant == violation.Invariant {
			violation = res.Violation
			return true
		}
		return false
	}
	for chunk := max(1, len(keep)/2); budget > 0; {
		removed := false
		for i := 0; i+chunk <= len(keep); {
			next := append(append([]int{}, keep[:i]...), keep[i+chunk:]...)
			if try(next) {
				keep, removed = next, true
			} else {
				i += chunk
			}
		}
		if chunk == 1 && !removed {
			break
		}
		if chunk > 1 {
			chunk /= 2
		}
	}
	return keep, violation
}
