package crashtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/felixlog/felix/storage"
)

// childEnv makes the test binary append to a log instead of testing: its value is
// mode and directory.
const childEnv = "FELIX_CRASH_CHILD"

// childAppenders append side by side.
const childAppenders = 4

func childOptions(mode storage.FsyncMode) storage.Options {
	return storage.Options{
		Fsync: mode, SegmentBytes: 64 << 10, FsyncInterval: 5 * time.Millisecond, Preallocate: true,
	}
}

// runChild appends until it is killed, and writes to standard output for every
// acknowledged batch its first offset, count and number, 8 bytes each, in one write.
func runChild(setting string) int {
	name, dir, ok := strings.Cut(setting, ":")
	if !ok {
		fmt.Fprintln(os.Stderr, "setting:", setting)
		return 2
	}
	mode, err := storage.ParseFsyncMode(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx := context.Background()
	log, err := storage.Open(ctx, dir, childOptions(mode))
	if err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		return 1
	}
	var mu sync.Mutex // of standard output
	var wg sync.WaitGroup
	started := uint64(log.Next()) // no two lives use one number
	failed := make(chan error, childAppenders)
	for a := range uint64(childAppenders) {
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				number := started<<32 | a<<24 | i
				e := childEntry(number)
				b := &storage.Batch{Payloads: e.payloads()}
				if err := log.Append(ctx, b); err != nil {
					failed <- err
					return
				}
				var line [24]byte
				binary.BigEndian.PutUint64(line[0:], uint64(b.First))
				binary.BigEndian.PutUint64(line[8:], uint64(len(e.sizes)))
				binary.BigEndian.PutUint64(line[16:], number)
				mu.Lock()
				_, err := os.Stdout.Write(line[:])
				mu.Unlock()
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	fmt.Fprintln(os.Stderr, "append:", <-failed)
	return 1
}

// childEntry is the batch of a number: its sizes follow from it.
func childEntry(number uint64) *entry {
	r := rand.New(rand.NewPCG(number, 0))
	e := &entry{number: number, zeros: r.IntN(3) == 0}
	for range 1 + r.IntN(3) {
		e.sizes = append(e.sizes, payloadHead+r.IntN(300))
	}
	return e
}

// TestKill kills a process that appends, at random moments, FELIX_CRASH_ROUNDS times
// for each fsync mode. Every offset it had said was acknowledged must be there with
// what was written, and every other record must be one it was writing.
func TestKill(t *testing.T) {
	rounds := int(setting(t, "FELIX_CRASH_ROUNDS", 4))
	for _, mode := range []storage.FsyncMode{storage.None, storage.Periodic, storage.OnCommit} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			acked := map[storage.Offset]ref{}
			killed := 0
			for round := range rounds {
				if round%20 == 19 { // do not let the directory grow for ever
					dir = t.TempDir()
					clear(acked)
				}
				n, err := killOnce(t, mode, dir, acked)
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				killed += n
				if err := checkKilled(mode, dir, acked); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			}
			t.Logf("%d rounds, %d batches acknowledged", rounds, killed)
			if killed == 0 {
				t.Error("nothing was ever acknowledged")
			}
		})
	}
}

// killOnce starts a child, kills it after a random number of acknowledgements, and
// adds all it gave to acked.
func killOnce(t *testing.T, mode storage.FsyncMode, dir string, acked map[storage.Offset]ref) (int, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+mode.String()+":"+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	// The moment is random in acknowledgements, and then once more in time: the
	// kill lands while the child goes on.
	after, n := 1+rand.IntN(400), 0
	reader := bufio.NewReader(out)
	var line [24]byte
	var read error
	for {
		if _, read = io.ReadFull(reader, line[:]); read != nil {
			break
		}
		first := storage.Offset(binary.BigEndian.Uint64(line[0:]))
		for i := range binary.BigEndian.Uint64(line[8:]) {
			o := first + storage.Offset(i)
			r := ref{binary.BigEndian.Uint64(line[16:]), int(i)}
			if old, ok := acked[o]; ok {
				read = fmt.Errorf("offset %d given to %+v and to %+v", o, old, r)
			}
			acked[o] = r
		}
		if n++; n == after {
			if err := cmd.Process.Kill(); err != nil {
				return n, err
			}
		}
	}
	if errors.Is(read, io.EOF) || errors.Is(read, io.ErrUnexpectedEOF) {
		read = nil
	}
	if err := cmd.Wait(); err == nil || n < after {
		return n, fmt.Errorf("child ended by itself after %d: %v\n%s", n, err, stderr.String())
	}
	return n, read
}

// checkKilled opens the log in this process and reads all of it.
func checkKilled(mode storage.FsyncMode, dir string, acked map[storage.Offset]ref) (err error) {
	ctx := context.Background()
	log, err := storage.Open(ctx, dir, childOptions(mode))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close(ctx)) }()
	found, err := readEntries(ctx, log)
	if err != nil {
		return err
	}
	for o, want := range acked {
		if got, ok := found[o]; !ok || got != want {
			return fmt.Errorf("offset %d: %+v was acknowledged, found %+v (%v) in [%d, %d)", o, want, got, ok, log.Head(), log.Next())
		}
	}
	// What is there now was read and is there for good.
	for o, r := range found {
		acked[o] = r
	}
	return nil
}

// readEntries reads a log of childEntry batches and checks that each record is what
// its batch says and that batches are whole but for a last one.
func readEntries(ctx context.Context, log *storage.Log) (map[storage.Offset]ref, error) {
	found := map[storage.Offset]ref{}
	due := map[uint64]int{} // of each batch
	var page storage.Page
	for at := log.Head(); at < log.Next(); at = page.Next {
		if err := log.Read(ctx, &page, storage.ReadRange{From: at}); err != nil {
			return nil, err
		}
		if len(page.Records) == 0 {
			return nil, fmt.Errorf("nothing at %d below %d", at, log.Next())
		}
		for _, r := range page.Records {
			if len(r.Payload) < payloadHead {
				return nil, fmt.Errorf("offset %d: phantom % x", r.Offset, r.Payload)
			}
			number := binary.BigEndian.Uint64(r.Payload) - 1
			e, i := childEntry(number), int(binary.BigEndian.Uint32(r.Payload[8:]))
			if i >= len(e.sizes) || string(e.payload(i)) != string(r.Payload) {
				return nil, fmt.Errorf("offset %d: phantom: record %d of batch %x", r.Offset, i, number)
			}
			if due[number] != i {
				return nil, fmt.Errorf("offset %d: record %d of batch %x where %d was due", r.Offset, i, number, due[number])
			}
			due[number] = i + 1
			found[r.Offset] = ref{number, i}
		}
	}
	return found, nil
}
