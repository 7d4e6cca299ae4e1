package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
)

type benchFlags struct {
	tests, fsync, peers          []string
	payload, runs, subs, records int
	keys, messages               int
	shards                       uint32
	seconds                      time.Duration
	noFloor                      bool
	dir, out                     string
}

// benchCase is one kind of load, on a broker and on the bare one.
type benchCase struct {
	name     string
	inFlight int
	byTime   bool
	run      func(*bench, context.Context) (figures benchFigures, records int, err error)
	// floor is nil where a broker without meaning has nothing to compare with.
	floor func(b *bench, ctx context.Context, addr string) (benchFigures, error)
}

// benchCases are the cases in the order they run. byTime: what counts is the time of
// one operation, not the rate.
var benchCases = []benchCase{
	{"publish-1", 1, true, awaited(1), floorAwaited(1)},
	{"publish-8", 8, false, awaited(8), floorAwaited(8)},
	{"publish-64", 64, false, awaited(64), floorAwaited(64)},
	{"pipelined", benchWindow, false, (*bench).pipelined, (*bench).floorPipelined},
	{"fanout", 0, false, (*bench).fanout, (*bench).floorFanout},
	{"replay", 0, false, (*bench).replay, (*bench).floorReplay},
	{"latency", 1, true, (*bench).latency, (*bench).floorLatency},
	{"cache-get-1", 1, true, cacheGets(1), nil},
	{"cache-get-64", 64, false, cacheGets(64), nil},
	{"cache-put-1", 1, true, cachePuts(1), floorAwaited(1)},
	{"cache-put-64", 64, false, cachePuts(64), floorAwaited(64)},
	{"queue-100", queueWorkers, false, claims(100), nil},
	{"queue-1", queueWorkers, false, consumes, nil},
}

func (e *environment) benchCommand() *cobra.Command {
	f := &benchFlags{}
	var names []string
	for _, c := range benchCases {
		names = append(names, c.name)
	}
	names = append(names, benchRestart)
	all := append(slices.Clone(names), benchMemory)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure a broker beside what this machine allows",
		Long: "Measure a broker of its own, or the one of --brokers or --context, beside the bare broker: a TCP server that only\n" +
			"frames, checksums, appends with a shared write and flush, and answers. Both are child processes, driven in turn, and\n" +
			"each figure is the median of --runs. ratio is ours to the bare broker: of rates (above 1 is faster), and for latency,\n" +
			"restart and the cases with one operation in flight, but for claims, of median times (below 1 is faster).\n" +
			"The cases are " + strings.Join(all, ", ") + "; all but " + benchMemory + " run unless --tests says so.",
		Example: "  felix bench\n  felix bench --tests publish-64,pipelined --fsync on_commit --json\n  felix bench --tests cache-get-64,queue-100 --peer redis.md\n" +
			"  felix bench --tests memory --fsync periodic --keys 5000000",
		Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error { return e.bench(c.Context(), f) }),
	}
	fs := c.Flags()
	fs.StringSliceVar(&f.tests, "tests", names, "cases to run")
	fs.StringSliceVar(&f.fsync, "fsync", []string{"periodic", "on_commit"}, "fsync modes to run")
	fs.IntVar(&f.payload, "payload", 128, "bytes of a record")
	fs.Uint32Var(&f.shards, "shards", 1, "shards of the stream")
	fs.IntVar(&f.runs, "runs", 3, "runs of each case; the median counts")
	fs.DurationVar(&f.seconds, "time", 2*time.Second, "length of a run")
	fs.IntVar(&f.subs, "subscribers", 64, "subscribers of fanout")
	fs.IntVar(&f.records, "records", 1_000_000, "records of replay and restart")
	fs.IntVar(&f.keys, "keys", 100_000, "keys of the cache cases and of memory")
	fs.IntVar(&f.messages, "messages", 300_000, "records of queue-100; queue-1 has a tenth")
	fs.StringArrayVar(&f.peers, "peer", nil, "FILE or FSYNC=FILE with a peer's rows from the same machine and time: JSON of this command, or a Markdown table")
	fs.BoolVar(&f.noFloor, "no-floor", false, "leave the bare broker out")
	fs.StringVar(&f.dir, "dir", "", "where to put the data, made if it is not there; a temporary directory when not given")
	fs.StringVar(&f.out, "out", "", "write the JSON here too")
	complete(c, "tests", all...)
	complete(c, "fsync", "none", "periodic", "on_commit")
	return c
}

// bench is one broker with one stream under measurement.
type bench struct {
	*environment
	f       *benchFlags
	fsync   string
	payload []byte
	client  *client.Client
	stream  string
	// cache is the one of the cache cases, filled when the first of them runs.
	cache string
	// scrape is where the broker's counters are read, pid its process; none if it is not
	// ours. began is what they were when the part of a run that counts began.
	scrape string
	pid    int
	began  brokerCounters
}

const benchWindow = 1000

func (e *environment) bench(ctx context.Context, f *benchFlags) (err error) {
	switch {
	case f.payload < 16 || f.payload > 8<<20:
		return usagef("--payload %d: 16 bytes to 8 MiB", f.payload)
	case f.runs < 1 || f.subs < 1 || f.records < 1 || f.shards < 1 || f.keys < 1:
		return usagef("--runs, --subscribers, --records, --keys and --shards are at least 1")
	case f.messages < 10*queueWorkers:
		return usagef("--messages %d: at least %d", f.messages, 10*queueWorkers)
	case f.seconds < 10*time.Millisecond:
		return usagef("--time %s: at least 10ms", f.seconds)
	}
	for _, name := range f.tests {
		if name != benchRestart && name != benchMemory && !slices.ContainsFunc(benchCases, func(c benchCase) bool { return c.name == name }) {
			return usagef("--tests: no case %q", name)
		}
	}
	var peers []peerRow
	for _, p := range f.peers {
		rows, err := readPeer(p)
		if err != nil {
			return err
		}
		peers = append(peers, rows...)
	}
	if f.dir != "" {
		if err := os.MkdirAll(f.dir, 0o700); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	dir, err := os.MkdirTemp(f.dir, "felix-bench-")
	if err != nil {
		return &exitError{exitUsage, err}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	report := newBenchReport()
	for _, mode := range f.fsync {
		if _, err := oneOf("--fsync", mode, "none", "periodic", "on_commit"); err != nil {
			return err
		}
		if err := e.benchMode(ctx, f, mode, filepath.Join(dir, mode), peers, report); err != nil {
			return err
		}
	}
	if e.opts.json {
		printJSON(e.out, report)
	}
	if f.out != "" {
		file, err := os.Create(f.out)
		if err != nil {
			return err
		}
		printJSON(file, report)
		return file.Close()
	}
	return nil
}

// floorBytes is room for what replay reads and, within reason, for a whole run, so
// that the file is not written twice in it.
func (f *benchFlags) floorBytes() int64 {
	replay := int64(f.records) * int64(f.payload+floorHead)
	run := int64(f.seconds.Seconds() * (400 << 20))
	return max(replay, min(run, 512<<20)) + 16<<20
}

func benchPayload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return b
}

// benchMode runs every case in one fsync mode.
func (e *environment) benchMode(ctx context.Context, f *benchFlags, mode, dir string, peers []peerRow, report *benchReport) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	own, scrape, pid := *e, "", 0
	var broker *spawned
	if len(e.opts.brokers) == 0 && e.opts.context == "" {
		broker, err = startChild(ctx, dir, nil, "--storage-min-free", "0", "--storage-fsync-mode", mode)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, broker.Stop()) }()
		own, scrape, pid = *broker.use(e), broker.HTTP, broker.Pid()
	}
	b := &bench{environment: &own, f: f, fsync: mode, payload: benchPayload(f.payload), scrape: scrape, pid: pid}
	defer func() { err = errors.Join(err, b.removeCache(context.WithoutCancel(ctx))) }()
	floorAddr := ""
	if !f.noFloor {
		floor, err := startFloor(ctx, dir, f.floorBytes(), mode == "on_commit")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, floor.Kill()) }()
		floorAddr = floor.Clients
	}
	if !e.opts.json {
		fmt.Fprintf(e.out, "\n%s, %d B, %d shards\n%-12s %12s %10s %10s %10s %8s %8s %8s %12s %7s %12s %8s %7s\n", mode, f.payload, f.shards,
			"case", "records/s", "p50 µs", "p99 µs", "p999 µs", "cpu µs", "allocs", "flushes", "bare/s", "ratio", "peer/s", "cpu µs", "ratio")
	}
	bar := e.progress("measured runs of "+mode, int64(len(f.tests)*f.runs))
	defer bar.end()
	for _, c := range benchCases {
		if !slices.Contains(f.tests, c.name) {
			continue
		}
		row := benchRow{Name: c.name, Params: benchParams{Payload: f.payload, Fsync: mode, Shards: int(f.shards), InFlight: c.inFlight, Runs: f.runs}}
		var ours, bare []benchFigures
		var allocs, flushes []float64
		for range f.runs {
			figures, records, err := b.on(ctx, c.run)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			after := b.counters(ctx)
			if b.pid != 0 {
				figures.CPU = (after.cpu - b.began.cpu).Seconds() * 1e6 / float64(max(records, 1))
			}
			ours = append(ours, figures)
			allocs = append(allocs, (after.mallocs-b.began.mallocs)/float64(max(records, 1)))
			flushes = append(flushes, (after.flushes-b.began.flushes)/float64(max(records, 1)))
			if floorAddr != "" && c.floor != nil {
				figures, err := c.floor(b, ctx, floorAddr)
				if err != nil {
					return fmt.Errorf("%s, bare broker: %w", c.name, err)
				}
				bare = append(bare, figures)
			}
			bar.add(1)
		}
		row.benchFigures = median(ours)
		slices.Sort(allocs)
		slices.Sort(flushes)
		row.AllocsPerOp, row.FlushesPerOp = allocs[len(allocs)/2], flushes[len(flushes)/2]
		if bare != nil {
			m := median(bare)
			row.Floor = &m
		}
		row.beside(peers, c.byTime)
		report.Rows = append(report.Rows, row)
		if !e.opts.json {
			b.printRow(&row)
		}
	}
	if slices.Contains(f.tests, benchMemory) {
		row, err := e.memory(ctx, f, mode, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", benchMemory, err)
		}
		report.Rows = append(report.Rows, row)
		if !e.opts.json {
			b.printRow(&row)
			m := row.Memory
			fmt.Fprintf(b.out, "%-12s at rest %.0f MiB; with %d keys %.0f MiB, %.0f bytes of heap for a key of %d; %.1f %% of CPU is garbage collection\n",
				"", m.RestMiB, m.Keys, m.ResidentMiB, m.HeapPerKey, benchKeyBytes, 100*m.GCShare)
		}
	}
	if broker == nil || !slices.Contains(f.tests, benchRestart) {
		return nil
	}
	row, again, err := b.restart(ctx, dir, broker)
	if again != nil {
		broker = again
	}
	if err != nil {
		return fmt.Errorf("%s: %w", benchRestart, err)
	}
	row.beside(peers, true)
	report.Rows = append(report.Rows, row)
	if !e.opts.json {
		b.printRow(&row)
		fmt.Fprintf(b.out, "%-12s ready after %.0f ms with %.0f MiB in memory; %.0f bytes a record on disk\n", "", row.P50/1e3, row.ResidentMiB, row.BytesPerRecord)
	}
	return nil
}

func (b *bench) printRow(r *benchRow) {
	number := func(v float64, format string) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf(format, v)
	}
	floorRate, peerRate, peerCPU := 0.0, 0.0, 0.0
	if r.Floor != nil {
		floorRate = r.Floor.Rate
	}
	if r.Peer != nil {
		peerRate, peerCPU = r.Peer.Rate, r.Peer.CPU
	}
	fmt.Fprintf(b.out, "%-12s %12.0f %10s %10s %10s %8s %8s %8s %12s %7s %12s %8s %7s\n", r.Name, r.Rate, number(r.P50, "%.1f"), number(r.P99, "%.1f"), number(r.P999, "%.1f"),
		number(r.CPU, "%.1f"), number(r.AllocsPerOp, "%.2f"), number(r.FlushesPerOp, "%.4f"), number(floorRate, "%.0f"), number(r.Ratio, "%.2f"), number(peerRate, "%.0f"), number(peerCPU, "%.1f"), number(r.PeerRatio, "%.2f"))
}

// on runs a case against a stream of its own, which is removed afterwards.
func (b *bench) on(ctx context.Context, run func(*bench, context.Context) (benchFigures, int, error)) (f benchFigures, records int, err error) {
	b.stream = "bench-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	quiet := *b.environment
	quiet.out = io.Discard
	quiet.opts.json = false
	if err := quiet.createStream(ctx, b.stream, b.f.shards, b.fsync); err != nil {
		return f, 0, err
	}
	defer func() { err = errors.Join(err, quiet.removeStream(context.WithoutCancel(ctx), b.stream)) }()
	c, _, err := b.dial(ctx)
	if err != nil {
		return f, 0, err
	}
	defer c.Close()
	b.client = c
	b.begin(ctx)
	return run(b, ctx)
}

// begin says that what a run prepares is done: the broker's counters count from here.
func (b *bench) begin(ctx context.Context) { b.began = b.counters(ctx) }

type brokerCounters struct {
	mallocs, flushes float64
	cpu              time.Duration // of this process and the broker's
}

// counters reads the broker's own; zeros when there is nowhere to read them.
func (b *bench) counters(ctx context.Context) brokerCounters {
	value := b.metrics(ctx)
	return brokerCounters{value("go_memstats_mallocs_total"), value("felix_storage_sync_duration_seconds_count"), cpuTime(b.pid)}
}

// metrics reads the broker's own; what cannot be read is 0.
func (b *bench) metrics(ctx context.Context) func(series string) float64 {
	text := ""
	if b.scrape != "" {
		if page, err := b.fetch(ctx, b.scrape+"/metrics"); err == nil {
			text = page
		}
	}
	return func(series string) float64 {
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(line, series+" "); ok {
				if n, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
					return n
				}
			}
		}
		return 0
	}
}
