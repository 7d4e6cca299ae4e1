package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKilledWithItsShardsElsewhere: a broker whose shards are outside its data directory
// has, killed and started again, everything it acknowledged.
func TestKilledWithItsShardsElsewhere(t *testing.T) {
	p := &process{t: t, settings: settings{Dir: t.TempDir(), Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Fsync: "on_commit",
		StorageDir: filepath.Join(t.TempDir(), "disk", "shards")}}
	p.start()
	t.Cleanup(p.kill)
	p.createStream("orders", 1)
	const records = 100
	for round := range 3 {
		c := p.dial()
		requireStored(t, c, round*records)
		producer, err := c.Producer("orders")
		require.NoError(t, err)
		for i := range records {
			_, err := producer.Publish(soon(t), numbered(round*records+i))
			require.NoError(t, err)
		}
		p.kill()
		p.start()
	}
	requireStored(t, p.dial(), 3*records)
	require.FileExists(t, filepath.Join(p.StorageDir, "LOCK"))
	_, err := os.Stat(filepath.Join(p.Dir, "data", "streams"))
	require.ErrorIs(t, err, os.ErrNotExist, "nothing of it is in the data directory")
}
