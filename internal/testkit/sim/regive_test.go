package sim

import (
	"testing"

	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
)

// TestTwoLeadersOfARegivenGeneration: only a generation that the metadata gave again has
// two leaders, and only where no disk voted for both.
func TestTwoLeadersOfARegivenGeneration(t *testing.T) {
	first := replica.Term{Generation: 3, By: replica.Opening{Disk: 1, Count: 2}}
	second := replica.Term{Generation: 3, By: replica.Opening{Disk: 2, Count: 1}}
	for _, c := range []struct {
		name    string
		regiven generation
		votes   []meta.DiskID
		may     bool
	}{
		{"disjoint", 3, []meta.DiskID{2, 3}, true},
		{"a disk voted for both", 3, []meta.DiskID{1, 2}, false},
		{"another generation", 2, []meta.DiskID{2, 3}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{shape: &Shape{}}
			w.check.init(w)
			w.check.regiven = c.regiven
			w.check.starting(first, []meta.DiskID{1})
			w.check.fenced(first, []meta.DiskID{1})
			w.check.starting(second, c.votes)
			if may := w.violation == nil; may != c.may {
				t.Errorf("a second leader: %v; it may be: %t", w.violation, c.may)
			}
		})
	}
}
