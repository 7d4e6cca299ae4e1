package partition

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage"
)

// openGate leaves commits to the test.
type openGate struct{}

func (openGate) Written(*storage.Group) {}
func (openGate) Stable(storage.Offset)  {}

func openGated(t *testing.T) *Partition {
	p, err := Open(deadline(t), t.TempDir(), Options{Name: "s", Gate: openGate{}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(deadline(t))) })
	return p
}

// TestAGateAnswersInOrder has an answer be slow while others come behind it: a refusal
// that waits for nothing, and what a later commit lets go.
func TestAGateAnswersInOrder(t *testing.T) {
	p := openGated(t)
	slow := newSlowDone()
	answers := make(chan string, 3)
	send := func(name string, b *Publish) {
		b.Payloads = payloads(name)
		b.Done = func(*Publish) {
			if name == "a" {
				slow.done()
			}
			if p.readable.Load() < uint64(b.needs) {
				t.Errorf("%s is answered before it can be read", name)
			}
			answers <- name
		}
		require.NoError(t, p.Publish(b))
		p.Drive(true)
	}
	send("a", &Publish{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		p.Commit(1)
	}()
	<-slow.entered
	send("refused", &Publish{HasExpected: true, Expected: 99})
	send("b", &Publish{})
	p.Commit(2)
	require.Empty(t, answers)
	close(slow.release)
	<-finished
	require.Equal(t, []string{"a", "refused", "b"}, []string{<-answers, <-answers, <-answers})
}

// TestAnAbandonedGateForgetsWhatItWaitedFor: a refusal that comes after waits for nothing.
func TestAnAbandonedGateForgetsWhatItWaitedFor(t *testing.T) {
	p := openGated(t)
	a := send(p, &Publish{Payloads: payloads("a")})
	p.Drive(true)
	require.True(t, a.waiting())
	p.Abandon(ErrLeadershipLost)
	require.ErrorIs(t, a.wait(t).Err, ErrLeadershipLost)
	refused := send(p, &Publish{Payloads: payloads("b"), HasExpected: true, Expected: 99})
	p.Drive(true)
	require.ErrorAs(t, refused.wait(t).Err, new(*storage.OffsetMismatchError))
}
