package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/wire"
)

func (e *environment) streamCommand() *cobra.Command {
	return group("stream", "Create, list, describe, mend and remove streams",
		e.streamCreate(), e.streamList(), e.streamInfo(), e.streamRemove(), e.reopenCommand("stream", e.streamPath), e.retainCommand(e.streamPath))
}

// checkName refuses a name locally, before anything is asked.
func checkName(what, name string) error {
	if err := wire.ValidName(name); err != nil {
		return usagef("%s: %v", what, err)
	}
	return nil
}

func (e *environment) streamPath(m *manager, name ...string) []string {
	return append([]string{"v1", "tenants", m.Tenant, "namespaces", m.Namespace, "streams"}, name...)
}

func (e *environment) streamCreate() *cobra.Command {
	var (
		durable, storePublisher                 bool
		shards                                  uint32
		kind, fsync, age, size, overflow, large string
	)
	c := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create a stream",
		Long:    "Create a stream. One that exists with the same settings is left as it is; one with other settings is refused.",
		Example: "  felix stream create orders --durable --shards 4\n  felix stream create jobs --durable --kind queue --fsync on_commit",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		if err := checkName("stream", args[0]); err != nil {
			return err
		}
		s := api.Stream{
			Stream: args[0], Kind: "Stream", Shards: shards, ReplicationFactor: 1,
			Consistency: "Leader", Delivery: "AtLeastOnce", Durable: durable, StorePublisher: storePublisher,
		}
		if shards == 0 {
			return usagef("--shards 0: a stream has at least 1")
		}
		var err error
		if s.Kind, err = oneOf("--kind", kind, "stream", "queue"); err != nil {
			return err
		}
		if s.Fsync, err = oneOf("--fsync", fsync, "", "none", "periodic", "on_commit"); err != nil {
			return err
		}
		if s.Overflow, err = oneOf("--overflow", overflow, "", "block", "drop_new", "drop_old"); err != nil {
			return err
		}
		if durable && overflow != "" {
			return usagef("--overflow is for in-memory streams: a slow reader of a durable one falls back to disk")
		}
		if !durable && (fsync != "" || age != "" || size != "") {
			return usagef("--fsync and --retention-* are for durable streams: give --durable")
		}
		if age != "" {
			d, err := config.ParseDuration(age)
			if err != nil {
				return usagef("--retention-age: %v", err)
			}
			if d < time.Second {
				return usagef("--retention-age %s would keep nothing: at least 1s", age)
			}
			if d%time.Second != 0 {
				return usagef("--retention-age %s is not a whole number of seconds", age)
			}
			n := uint64(d / time.Second)
			s.Retention.MaxAgeSeconds = &n
		}
		if size != "" {
			n, err := positiveBytes("--retention-bytes", size)
			if err != nil {
				return err
			}
			s.Retention.MaxSizeBytes = &n
		}
		if large != "" {
			n, err := positiveBytes("--max-record-bytes", large)
			if err != nil {
				return err
			}
			s.MaxRecordBytes = int64(n)
		}
		m, err := e.manager()
		if err != nil {
			return err
		}
		ctx, cancel := e.bounded(c)
		defer cancel()
		var made api.Stream
		err = m.call(ctx, http.MethodPost, s, &made, e.streamPath(m)...)
		var status *statusError
		if errors.As(err, &status) && status.code == "already_exists" {
			var have api.Stream
			if err := m.call(ctx, http.MethodGet, nil, &have, e.streamPath(m, s.Stream)...); err != nil {
				return err
			}
			if field := differs(&have, &s); field != "" {
				return &exitError{exitRefused, fmt.Errorf("stream %s exists with another %s", s.Stream, field)}
			}
			return e.show(have, "stream %s exists", s.Stream)
		}
		if err != nil {
			return err
		}
		return e.show(made, "stream %s created", s.Stream)
	})
	f := c.Flags()
	f.BoolVar(&durable, "durable", false, "keep records on disk")
	f.Uint32Var(&shards, "shards", 1, "shards, fixed for good")
	f.StringVar(&kind, "kind", "stream", "stream or queue")
	f.StringVar(&fsync, "fsync", "", "none, periodic or on_commit; the broker's default when not given")
	f.StringVar(&age, "retention-age", "", "how long records are kept, as in 24h or 7d")
	f.StringVar(&size, "retention-bytes", "", "how much a shard keeps, as in 10GiB")
	f.StringVar(&overflow, "overflow", "", "in-memory streams: block, drop_new (if not given) or drop_old for a slow subscriber")
	f.StringVar(&large, "max-record-bytes", "", "largest record, at most 64MiB")
	f.BoolVar(&storePublisher, "store-publisher", false, "keep who published beside each record")
	complete(c, "kind", "stream", "queue")
	complete(c, "fsync", "none", "periodic", "on_commit")
	complete(c, "overflow", "block", "drop_new", "drop_old")
	return c
}

// complete offers fixed values for a flag.
func complete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		fmt.Fprintln(os.Stderr, "felix:", err)
	}
}

func oneOf(flag, value string, allowed ...string) (string, error) {
	for _, a := range allowed {
		if value == a {
			return value, nil
		}
	}
	if allowed[0] == "" {
		allowed = allowed[1:]
	}
	return "", usagef("%s %q is not one of %s", flag, value, strings.Join(allowed, ", "))
}

func positiveBytes(flag, s string) (uint64, error) {
	n, err := config.ParseBytes(s)
	if err != nil {
		return 0, usagef("%s: %v", flag, err)
	}
	if n == 0 {
		return 0, usagef("%s 0 would keep nothing", flag)
	}
	return uint64(n), nil
}

// differs names the first setting in which a stream is not as asked. What was not
// asked for does not count.
func differs(have, want *api.Stream) string {
	w := *want
	w.TenantID, w.Namespace, w.Routing, w.Region = have.TenantID, have.Namespace, have.Routing, have.Region
	for _, p := range []struct{ have, want *string }{{&have.Fsync, &w.Fsync}, {&have.Overflow, &w.Overflow}} {
		if *p.want == "" {
			*p.want = *p.have
		}
	}
	if w.MaxRecordBytes == 0 {
		w.MaxRecordBytes = have.MaxRecordBytes
	}
	if !strings.EqualFold(w.Kind, have.Kind) {
		return "kind"
	}
	w.Kind = have.Kind
	h, v := reflect.ValueOf(*have), reflect.ValueOf(w)
	for i := range h.NumField() {
		if !reflect.DeepEqual(h.Field(i).Interface(), v.Field(i).Interface()) {
			name, _, _ := strings.Cut(h.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// show prints a result: the object with --json, else one line.
func (e *environment) show(v any, format string, args ...any) error {
	if e.opts.json {
		printJSON(e.out, v)
		return nil
	}
	_, err := fmt.Fprintf(e.out, format+"\n", args...)
	return err
}

func (e *environment) streamList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the streams of the namespace", Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error {
			m, err := e.manager()
			if err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			all, err := listAll[api.Stream](ctx, m, e.streamPath(m)...)
			if err != nil {
				return err
			}
			if e.opts.json {
				printJSON(e.out, items[api.Stream]{all})
				return nil
			}
			var rows [][]string
			for i := range all {
				s := &all[i]
				rows = append(rows, []string{s.Stream, strings.ToLower(s.Kind), strconv.Itoa(int(s.Shards)), yesNo(s.Durable), first(s.Fsync, "default")})
			}
			return table(e.out, []string{"NAME", "KIND", "SHARDS", "DURABLE", "FSYNC"}, rows)
		}),
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (e *environment) streamInfo() *cobra.Command {
	return &cobra.Command{
		Use: "info NAME", Short: "Describe a stream", Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName("stream", args[0]); err != nil {
				return err
			}
			m, err := e.manager()
			if err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			var s api.Stream
			if err := m.call(ctx, http.MethodGet, nil, &s, e.streamPath(m, args[0])...); err != nil {
				return err
			}
			if e.opts.json {
				printJSON(e.out, s)
				return nil
			}
			rows := [][]string{
				{"tenant", s.TenantID}, {"namespace", s.Namespace}, {"kind", strings.ToLower(s.Kind)}, {"shards", strconv.Itoa(int(s.Shards))},
				{"durable", yesNo(s.Durable)}, {"fsync", first(s.Fsync, "the broker's default")}, {"consistency", s.Consistency},
				{"retention age", boundText(s.Retention.MaxAgeSeconds, func(n uint64) string { return (time.Duration(n) * time.Second).String() })},
				{"retention bytes", boundText(s.Retention.MaxSizeBytes, func(n uint64) string { return config.FormatBytes(int64(n)) })},
			}
			if s.Overflow != "" {
				rows = append(rows, []string{"overflow", s.Overflow})
			}
			return table(e.out, []string{"stream", s.Stream}, rows)
		}),
	}
}

func boundText(n *uint64, show func(uint64) string) string {
	if n == nil {
		return "the broker's default"
	}
	return show(*n)
}

func (e *environment) streamRemove() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "rm NAME", Short: "Remove a stream and its records", Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName("stream", args[0]); err != nil {
				return err
			}
			m, err := e.manager()
			if err != nil {
				return err
			}
			if err := e.confirm(yes, "remove stream %s and all its records", args[0]); err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			if err := m.call(ctx, http.MethodDelete, nil, nil, e.streamPath(m, args[0])...); err != nil {
				return err
			}
			return e.show(map[string]string{"removed": args[0]}, "stream %s removed", args[0])
		}),
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// confirm asks on a terminal; elsewhere --yes has to be given.
func (e *environment) confirm(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	f, ok := e.in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return usagef("%s: give --yes, there is nobody to ask", what)
	}
	fmt.Fprintf(e.err, "%s? [y/N] ", what)
	line, err := bufio.NewReader(e.in).ReadString('\n')
	if err == nil && strings.EqualFold(strings.TrimSpace(line), "y") {
		return nil
	}
	return &exitError{exitOther, errors.New("nothing was done")}
}
