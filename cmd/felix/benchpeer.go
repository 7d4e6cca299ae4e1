package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// peerRow is a row of a peer's figures. A zero field of Params matches any.
type peerRow struct {
	Name   string      `json:"name"`
	Case   string      `json:"case,omitempty"` // as the peer names it
	Params benchParams `json:"params"`
	benchFigures
}

// How the cases of a peer's table are recognised: the first that matches. A row may
// stand beside several cases of ours. n is what is in flight, and part of the name of
// those that have several sizes; window is what is in flight too. anyMode: when the peer
// flushes makes no difference.
var peerCases = []struct {
	re      *regexp.Regexp
	names   []string
	sized   bool
	anyMode bool
}{
	{re: regexp.MustCompile(`wait for each ack.*? \d+ B, (?P<n>\d+) `), names: []string{"publish"}, sized: true},
	{re: regexp.MustCompile(`xadd \d+ B, (?P<n>\d+) connections`), names: []string{"publish"}, sized: true},
	{re: regexp.MustCompile(`^(?:KV|go-redis) get .* (?P<n>\d+) (?:in flight|connections)`), names: []string{"cache-get"}, sized: true, anyMode: true},
	{re: regexp.MustCompile(`^(?:KV put|go-redis set) .* (?P<n>\d+) (?:in flight|connections)`), names: []string{"cache-put"}, sized: true},
	{re: regexp.MustCompile(`^XREADGROUP COUNT 1, .* (?P<n>\d+) workers`), names: []string{"queue-1"}},
	{re: regexp.MustCompile(`^XREADGROUP COUNT \d+, .* (?P<n>\d+) workers`), names: []string{"queue-100"}},
	// It confirms acks one at a time whatever a pull brings.
	{re: regexp.MustCompile(`^work queue, .* (?P<n>\d+) workers, ack confirmed`), names: []string{"queue-100", "queue-1"}},
	{re: regexp.MustCompile(`^fan-out`), names: []string{"fanout"}},
	{re: regexp.MustCompile(`(?:window|pipelines of) (?P<window>\d+)`), names: []string{"pipelined"}},
	// These bound what is in flight otherwise.
	{re: regexp.MustCompile(`^(?:fast-batch|redis-benchmark xadd)`), names: []string{"pipelined"}},
	{re: regexp.MustCompile(`500 a second|^JetStream publish to`), names: []string{"latency"}},
	{re: regexp.MustCompile(`from the start|from the log|^ordered |^pull Fetch`), names: []string{"replay"}, anyMode: true},
}

var (
	payloadWords = regexp.MustCompile(`(\d+) B\b`)
	modeWords    = regexp.MustCompile(`^#.*\b(?:appendfsync|sync) (always|everysec|default)\b`)
)

// peerModes are our fsync modes by the peers' words.
var peerModes = map[string]string{"always": "on_commit", "everysec": "periodic", "default": "periodic"}

// readPeer reads a peer's rows: our own JSON, or Markdown tables of case, rate,
// range, p50, p99, p999 in microseconds, and perhaps the largest and cores used, under headings that say when the peer flushes.
// The argument is FILE or FSYNC=FILE, for figures that were taken with one mode.
func readPeer(arg string) ([]peerRow, error) {
	fsync, file, ok := strings.Cut(arg, "=")
	if !ok {
		fsync, file = "", arg
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("--peer: %w", err)}
	}
	var rows []peerRow
	if strings.HasPrefix(strings.TrimSpace(string(raw)), "{") {
		var r struct {
			Rows []peerRow `json:"rows"`
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, usagef("--peer %s: %v", file, err)
		}
		rows = r.Rows
	} else {
		mode := ""
		for line := range strings.Lines(string(raw)) {
			if m := modeWords.FindStringSubmatch(line); m != nil {
				mode = peerModes[m[1]]
			}
			rows = append(rows, peerLine(line, mode)...)
		}
	}
	if len(rows) == 0 {
		return nil, usagef("--peer %s: no row of it is known", file)
	}
	for i := range rows {
		if fsync != "" {
			rows[i].Params.Fsync = fsync
		}
	}
	return rows, nil
}

// peerLine is what a line of a table stands for; nothing, if it is not known.
func peerLine(line, mode string) (rows []peerRow) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if row, ok := peerRestart(cells); ok {
		return []peerRow{row}
	}
	if len(cells) < 6 {
		return nil
	}
	number := func(i int) float64 {
		n, err := strconv.ParseFloat(cells[i], 64)
		if err != nil {
			return 0
		}
		return n
	}
	row := peerRow{Case: cells[0], benchFigures: benchFigures{Rate: number(1), P50: number(3), P99: number(4), P999: number(5)}}
	if row.Rate == 0 {
		return nil
	}
	if len(cells) > 7 {
		row.CPU = number(7) / row.Rate * 1e6 // of cores used
	}
	for _, c := range peerCases {
		m := c.re.FindStringSubmatch(cells[0])
		if m == nil {
			continue
		}
		group := func(name string) int {
			if i := c.re.SubexpIndex(name); i >= 0 {
				return atoi(m[i])
			}
			return 0
		}
		if p := payloadWords.FindStringSubmatch(cells[0]); p != nil {
			row.Params.Payload = atoi(p[1])
		}
		row.Params.InFlight = max(group("n"), group("window"))
		if !c.anyMode {
			row.Params.Fsync = mode
			switch {
			case strings.Contains(cells[0], "sync true"):
				row.Params.Fsync = "on_commit"
			case strings.Contains(cells[0], "sync false"):
				row.Params.Fsync = "periodic"
			}
		}
		for _, name := range c.names {
			row.Name = name
			if c.sized {
				row.Name += "-" + strconv.Itoa(row.Params.InFlight)
			}
			rows = append(rows, row)
		}
		return rows
	}
	return nil
}

// atoi is the number of digits; 0 where they are too many to be one.
func atoi(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// peerRestart reads a start after a kill: how stopped, how long that took, how long the
// start took, memory, records.
func peerRestart(cells []string) (peerRow, bool) {
	if len(cells) < 5 || cells[0] != "killed" {
		return peerRow{}, false
	}
	took, err := time.ParseDuration(cells[2])
	n := atoi(cells[4])
	if err != nil || took <= 0 || n == 0 {
		return peerRow{}, false
	}
	return peerRow{
		Name: benchRestart, Case: "start after a kill, " + cells[3], Params: benchParams{Records: n},
		benchFigures: benchFigures{Rate: float64(n) / took.Seconds(), P50: float64(took) / 1e3},
	}, true
}

// bestPeer is the best of a peer's rows that fit: with byTime the one of the least
// median time, else of the highest rate.
func bestPeer(rows []peerRow, name string, p benchParams, byTime bool) *peerRow {
	var best *peerRow
	fits := func(have, want int) bool { return have == 0 || want == 0 || have == want }
	// A record or two of a fill are warm-up.
	near := func(have, want int) bool {
		return have == 0 || want == 0 || max(have, want)-min(have, want) <= want/100
	}
	for i := range rows {
		r := &rows[i]
		if r.Name != name || !fits(r.Params.Payload, p.Payload) || !fits(r.Params.InFlight, p.InFlight) ||
			!near(r.Params.Records, p.Records) || r.Params.Fsync != "" && r.Params.Fsync != p.Fsync {
			continue
		}
		if best == nil || byTime && r.P50 < best.P50 || !byTime && r.Rate > best.Rate {
			best = r
		}
	}
	return best
}

// beside puts the best of the peers' rows into r, and sets its ratios.
func (r *benchRow) beside(peers []peerRow, byTime bool) {
	if best := bestPeer(peers, r.Name, r.Params, byTime); best != nil {
		r.Peer, r.PeerCase = &best.benchFigures, best.Case
	}
	r.compare(byTime)
}
