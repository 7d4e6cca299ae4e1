package main

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// Of every command: what is not there of what it is told. A file or a directory on the
// command line is an argument, what a broker would have is not found, and no command
// passes over either.
func TestExitCodesOfWhatIsNotThere(t *testing.T) {
	s := newShell(t)
	b := s.serve()
	s.ok("stream", "create", "jobs", "--durable", "--shards", "2")
	s.ok("pub", "jobs", "x", "--shard", "1")
	s.ok("group", "create", "jobs", "workers", "--shard", "1")
	s.ok("group", "create", "jobs", "others", "--shard", "1")
	s.ok("group", "create", "jobs", "kept", "--shard", "1")
	s.ok("cache", "create", "prices")
	table := map[string][]struct {
		args string
		exit int
	}{
		"serve":                      {{"--config nowhere", exitUsage}},
		"config":                     {{"--config nowhere", exitUsage}},
		"context ls":                 {{"--context-file nowhere", exitOK}}, // none yet: an empty list
		"context show":               {{"--context nowhere", exitUsage}},
		"context use":                {{"nowhere", exitMissing}},
		"version":                    nil,
		"pub":                        {{"none x", exitMissing}, {"jobs --file nowhere", exitUsage}, {"jobs x --ca-file nowhere", exitUsage}, {"jobs x --token-file nowhere", exitUsage}, {"jobs x --signing-key nowhere", exitUsage}},
		"sub":                        {{"none --count 1", exitMissing}},
		"demo restart":               nil,
		"log write":                  nil, // makes its directory
		"log bench":                  nil,
		"log verify":                 {{"--dir nowhere", exitUsage}},
		"log dump":                   {{"--dir nowhere", exitUsage}, {"--dir nowhere/00000000000000000000.log", exitUsage}},
		"log seal":                   {{"--dir nowhere", exitUsage}},
		"bench":                      {{"--tests nowhere", exitUsage}},
		"top":                        {{"--once --controlplane-ca-file nowhere", exitUsage}},
		"stream create":              {{"x -n none", exitMissing}},
		"stream ls":                  {{"-n none", exitMissing}, {"--controlplane-token-file nowhere", exitUsage}, {"--controlplane-ca-file nowhere", exitUsage}},
		"stream info":                {{"none", exitMissing}},
		"stream rm":                  {{"none --yes", exitMissing}},
		"stream reopen":              {{"none", exitMissing}},
		"stream retain":              {{"none", exitMissing}},
		"cache create":               {{"x -n none", exitMissing}},
		"cache ls":                   {{"-n none", exitMissing}},
		"cache info":                 {{"none", exitMissing}},
		"cache set":                  {{"none --max-keys 1", exitMissing}},
		"cache rm":                   {{"none --yes", exitMissing}},
		"cache reopen":               {{"none", exitMissing}},
		"cache get":                  {{"none k", exitMissing}, {"prices k", exitMissing}},
		"cache put":                  {{"none k v", exitMissing}, {"prices k --file nowhere", exitUsage}},
		"cache del":                  {{"none k", exitMissing}, {"prices k", exitMissing}},
		"cache keys":                 {{"none", exitMissing}},
		"cache watch":                {{"none", exitMissing}},
		"counter add":                {{"none k 1", exitMissing}},
		"counter get":                {{"none k", exitMissing}, {"prices k", exitMissing}},
		"group create":               {{"none g", exitMissing}},
		"group poll":                 {{"none g", exitMissing}},
		"group ack":                  {{"none g 0:0:1", exitMissing}, {"jobs none 0:0:1", exitMissing}, {"jobs none 1:0:1", exitMissing}, {"jobs kept 1:0:1", exitRefused}},
		"group nack":                 {{"none g 0:0:1", exitMissing}, {"jobs none 0:0:1", exitMissing}, {"jobs none 1:0:1", exitMissing}, {"jobs kept 1:0:1", exitRefused}},
		"group extend":               {{"none g 0:0:1", exitMissing}, {"jobs none 0:0:1", exitMissing}, {"jobs none 1:0:1", exitMissing}, {"jobs kept 1:0:1", exitRefused}},
		"group describe":             {{"none g", exitMissing}, {"jobs none", exitMissing}, {"jobs workers --shard 0", exitMissing}, {"jobs workers", exitOK}},
		"group seek":                 {{"none g --from 0", exitMissing}},
		"group set":                  {{"none g", exitMissing}},
		"group ls":                   {{"none", exitMissing}},
		"group rm":                   {{"none g --yes", exitMissing}, {"jobs none --yes", exitMissing}, {"jobs others --shard 0 --yes", exitMissing}, {"jobs others --yes", exitOK}},
		"group dead-letters ls":      {{"none g", exitMissing}, {"jobs none", exitMissing}},
		"group dead-letters add":     {{"none g 0:0", exitMissing}, {"jobs none 1:0", exitMissing}, {"jobs kept 1:0", exitRefused}},
		"group dead-letters redrive": {{"none g 0:0", exitMissing}, {"jobs none 1:0", exitMissing}, {"jobs kept 1:0", exitMissing}},
		"group dead-letters discard": {{"none g 0:0", exitMissing}, {"jobs none 1:0", exitMissing}, {"jobs kept 1:0", exitMissing}, {"jobs kept 1:7", exitMissing}},
		"tenant create":              {{"x --controlplane-token-file nowhere", exitUsage}},
		"tenant ls":                  {{"--controlplane-token-file nowhere", exitUsage}},
		"tenant set":                 {{"none --display-name x", exitMissing}},
		"tenant rm":                  {{"none --yes", exitMissing}},
		"namespace create":           {{"x --tenant none", exitUsage}},
		"namespace ls":               {{"--tenant none", exitUsage}},
		"namespace rm":               {{"none --yes", exitMissing}},
		"token mint":                 {{"--signing-key nowhere", exitUsage}},
		"backup":                     {{"nowhere/file", exitUsage}, {"file --controlplane-token-file nowhere", exitUsage}},
		"restore":                    {{"nowhere --data-dir new", exitUsage}},
		"import":                     {{"nowhere --stream jobs", exitUsage}, {"nowhere --cache prices", exitUsage}},
	}
	known := leafCommands()
	for _, name := range known {
		require.Contains(t, table, name, "a command that is not in the table")
	}
	// Side by side: a client asks again for a while for a name that nobody knows.
	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	for _, name := range known {
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			own := *s
			for _, c := range table[name] {
				args := append(strings.Fields(name), strings.Fields(c.args)...)
				out, errs := own.felix(append(args, "--json")...)
				if own.exit != c.exit {
					t.Errorf("felix %q: exit %d, want %d: %s%s", args, own.exit, c.exit, out, errs)
					continue
				}
				if c.exit == exitOK {
					continue
				}
				var report struct{ Exit int }
				if err := json.Unmarshal([]byte(lastLine(errs)), &report); err != nil || report.Exit != c.exit {
					t.Errorf("felix %q: standard error says %q", args, errs)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, b.Stop())
}

// leafCommands are the commands that run, by their full names.
func leafCommands() (known []string) {
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		for _, sub := range c.Commands() {
			if !sub.Hidden {
				walk(sub, append(slices.Clone(path), sub.Name()))
			}
		}
		if !c.HasSubCommands() {
			known = append(known, strings.Join(path, " "))
		}
	}
	walk((&environment{}).root(), nil)
	return known
}
