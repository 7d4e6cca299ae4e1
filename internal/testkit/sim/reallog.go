package sim

import "github.com/felixlog/felix/internal/replica"

type realDisk struct{}

func newRealDisk(n *node, seed uint64) *realDisk { return nil }

func (d *realDisk) heal()           {}
func (d *realDisk) kill()           {}
func (d *realDisk) powerCut()       {}
func (d *realDisk) torn() bool      { return false }
func (d *realDisk) setFull(bool)    {}
func (d *realDisk) failFlushes(int) {}
func (d *realDisk) open(incarnation uint64, id replica.LogID, h hooks) (logPort, error) {
	return nil, nil
}
func (d *realDisk) peek(incarnation uint64, id replica.LogID) logPort { return nil }
