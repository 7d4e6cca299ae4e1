package crashtest

import (
	"runtime"
	"strings"
	"testing"

	"github.com/felixlog/felix/storage/internal/rules"
)

// faultsFor names the faults without which a rule makes no difference.
var faultsFor = map[*rules.Rule]faults{
	rules.PoisonOnFlushFailure:     {flushFails: true},
	rules.FlushCutBeforeNotWritten: {writes: true},
}

// TestEveryRuleMatters takes the rules of the log away, one at a time, and wants the
// crash tests to notice within a bound of seeds. A rule whose absence nothing notices
// is either not kept or not tested.
func TestEveryRuleMatters(t *testing.T) {
	most := setting(t, "FELIX_CRASH_RULE_SEEDS", 10_000)
	for _, rule := range rules.All() {
		t.Run(strings.ReplaceAll(rule.Name(), " ", "_"), func(t *testing.T) {
			defer rule.Suspend()()
			noticed := make(chan error, runtime.GOMAXPROCS(0)) // one per worker of seeds
			needs := faultsFor[rule]
			tried := seeds(0, most, func(seed uint64) (stats, bool) {
				if needs != (faults{}) && configFor(seed).faults != needs {
					return stats{}, true
				}
				_, err := long(seed)
				if err != nil {
					noticed <- err
				}
				return stats{opens: 1}, err == nil
			})
			if len(noticed) == 0 {
				t.Fatalf("%d seeds did not notice", tried.opens)
			}
			first, _, _ := strings.Cut((<-noticed).Error(), "\n")
			t.Logf("noticed after %d seeds: %s", tried.opens, first)
		})
	}
}
