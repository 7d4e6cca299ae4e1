package leak

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

type tests int

func (t tests) Run() int { return int(t) }

func TestWhatIsLeftFails(t *testing.T) {
	end := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		<-end
		close(ended)
	}()
	require.ErrorContains(t, Find(0), "TestWhatIsLeftFails")
	require.Equal(t, 1, run(tests(0), 0))
	require.Equal(t, 7, run(tests(7), 0), "tests that failed say so themselves")
	close(end)
	<-ended
	require.Equal(t, 0, run(tests(0), time.Minute))
}

// A goroutine that takes longer to end than one look lasts has not leaked.
func TestWhatIsSlowToEndPasses(t *testing.T) {
	looks := 0
	look := func() error {
		if looks++; looks < 5 {
			return errors.New("not yet")
		}
		return nil
	}
	require.NoError(t, until(time.Hour, look))
	require.Equal(t, 5, looks)
	looks = 0
	require.Error(t, until(-time.Hour, look))
	require.Equal(t, 1, looks)
}
