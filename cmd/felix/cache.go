package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/config"
)

func (e *environment) cacheCommand() *cobra.Command {
	return group("cache", "Create caches, and put, get, delete and watch their values",
		e.cacheCreate(), e.cacheList(), e.cacheInfo(), e.cacheSet(), e.cacheRemove(), e.reopenCommand("cache", e.cachePath),
		e.cacheGet(), e.cachePut(), e.cacheDelete(), e.cacheKeys(), e.cacheWatch())
}

func (e *environment) cachePath(m *manager, name ...string) []string {
	return append([]string{"v1", "tenants", m.Tenant, "namespaces", m.Namespace, "caches"}, name...)
}

// manage runs f against the HTTP API.
func (e *environment) manage(c *cobra.Command, f func(context.Context, *manager) error) error {
	m, err := e.manager()
	if err != nil {
		return err
	}
	ctx, cancel := e.bounded(c)
	defer cancel()
	return f(ctx, m)
}

// connected runs f with a client.
func (e *environment) connected(c *cobra.Command, f func(context.Context, *client.Client) error) error {
	cl, _, err := e.dial(c.Context())
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(c.Context(), cl)
}

// asking is connected for requests that are answered at once: --timeout bounds them.
func (e *environment) asking(c *cobra.Command, f func(context.Context, *client.Client) error) error {
	return e.connected(c, func(_ context.Context, cl *client.Client) error {
		ctx, cancel := e.bounded(c)
		defer cancel()
		return f(ctx, cl)
	})
}

// onCache runs f with a cache, for requests that are answered at once.
func (e *environment) onCache(c *cobra.Command, name string, f func(context.Context, *client.Cache) error) error {
	if err := checkName("cache", name); err != nil {
		return err
	}
	return e.asking(c, func(ctx context.Context, cl *client.Client) error { return f(ctx, cl.Cache(name)) })
}

// millis is a flag in milliseconds; one past the longest duration is that.
func millis(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// cacheBounds are the flags that bound a cache.
type cacheBounds struct{ maxBytes, maxKeys, onFull string }

func (b *cacheBounds) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.maxBytes, "max-bytes", "", "most bytes of records, as in 1GiB; 0: no bound")
	f.StringVar(&b.maxKeys, "max-keys", "", "most keys; 0: no bound")
	f.StringVar(&b.onFull, "on-full", "", "evict: the value nearest to its expiry makes room; refuse: the put is refused")
	complete(c, "on-full", "evict", "refuse")
}

// fill puts the flags given into body.
func (b *cacheBounds) fill(body map[string]any) error {
	if b.maxBytes != "" {
		n, err := config.ParseBytes(b.maxBytes)
		if err != nil {
			return usagef("--max-bytes: %v", err)
		}
		body["max_bytes"] = n
	}
	if b.maxKeys != "" {
		n, err := strconv.ParseInt(b.maxKeys, 10, 64)
		if err != nil || n < 0 {
			return usagef("--max-keys %q is not a number of keys", b.maxKeys)
		}
		body["max_keys"] = n
	}
	if b.onFull != "" {
		if _, err := oneOf("--on-full", b.onFull, "evict", "refuse"); err != nil {
			return err
		}
		body["on_full"] = b.onFull
	}
	return nil
}

func (e *environment) cacheCreate() *cobra.Command {
	var (
		shards         uint32
		display, fsync string
		bounds         cacheBounds
	)
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a cache", Args: cobra.ExactArgs(1),
		Long:    "Create a cache. One that exists is refused, unless it has the same settings.",
		Example: "  felix cache create sessions --shards 4 --max-keys 1000000",
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		if err := checkName("cache", args[0]); err != nil {
			return err
		}
		if shards == 0 {
			return usagef("--shards 0: a cache has at least 1")
		}
		if _, err := oneOf("--fsync", fsync, "", "none", "periodic", "on_commit"); err != nil {
			return err
		}
		body := map[string]any{"cache": args[0], "display_name": first(display, args[0]), "shards": shards, "replication_factor": 1, "consistency": "Leader"}
		if fsync != "" {
			body["fsync"] = fsync
		}
		if err := bounds.fill(body); err != nil {
			return err
		}
		return e.manage(c, func(ctx context.Context, m *manager) error {
			var made api.Cache
			err := m.call(ctx, http.MethodPost, body, &made, e.cachePath(m)...)
			var status *statusError
			if errors.As(err, &status) && status.code == "already_exists" {
				if err := m.call(ctx, http.MethodGet, nil, &made, e.cachePath(m, args[0])...); err != nil {
					return err
				}
				if field := cacheDiffers(&made, body); field != "" {
					return &exitError{exitRefused, fmt.Errorf("cache %s exists with another %s", args[0], field)}
				}
				return e.show(made, "cache %s exists", args[0])
			}
			if err != nil {
				return err
			}
			return e.show(made, "cache %s created", args[0])
		})
	})
	f := c.Flags()
	f.Uint32Var(&shards, "shards", 1, "shards, fixed for good")
	f.StringVar(&display, "display-name", "", "a name for people")
	f.StringVar(&fsync, "fsync", "", "none, periodic or on_commit; the broker's default when not given")
	bounds.register(c)
	complete(c, "fsync", "none", "periodic", "on_commit")
	return c
}

// cacheDiffers names the first setting asked for that a cache does not have; what was
// not asked for is not compared.
func cacheDiffers(have *api.Cache, asked map[string]any) string {
	for _, s := range []struct {
		name string
		have any
	}{{"shards", have.Shards}, {"fsync", have.Fsync}, {"max_bytes", have.MaxBytes}, {"max_keys", have.MaxKeys}, {"on_full", have.OnFull}} {
		if want, ok := asked[s.name]; ok && want != s.have {
			return s.name
		}
	}
	return ""
}

func (e *environment) cacheList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the caches of the namespace", Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error {
			return e.manage(c, func(ctx context.Context, m *manager) error {
				all, err := listAll[api.Cache](ctx, m, e.cachePath(m)...)
				if err != nil {
					return err
				}
				if e.opts.json {
					printJSON(e.out, items[api.Cache]{all})
					return nil
				}
				var rows [][]string
				for i := range all {
					k := &all[i]
					rows = append(rows, []string{k.Cache, strconv.Itoa(int(k.Shards)), bounded(k.MaxKeys), bounded(k.MaxBytes), k.OnFull})
				}
				return table(e.out, []string{"NAME", "SHARDS", "MAX KEYS", "MAX BYTES", "ON FULL"}, rows)
			})
		}),
	}
}

func bounded(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func (e *environment) cacheInfo() *cobra.Command {
	return &cobra.Command{
		Use: "info NAME", Short: "Describe a cache", Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName("cache", args[0]); err != nil {
				return err
			}
			return e.manage(c, func(ctx context.Context, m *manager) error {
				var k api.Cache
				if err := m.call(ctx, http.MethodGet, nil, &k, e.cachePath(m, args[0])...); err != nil {
					return err
				}
				return e.showCache(&k)
			})
		}),
	}
}

func (e *environment) showCache(k *api.Cache) error {
	if e.opts.json {
		printJSON(e.out, k)
		return nil
	}
	return table(e.out, []string{"cache", k.Cache}, [][]string{
		{"tenant", k.TenantID}, {"namespace", k.Namespace}, {"shards", strconv.Itoa(int(k.Shards))},
		{"fsync", first(k.Fsync, "the broker's default")}, {"max keys", bounded(k.MaxKeys)}, {"max bytes", bounded(k.MaxBytes)}, {"on full", k.OnFull},
	})
}

func (e *environment) cacheSet() *cobra.Command {
	var bounds cacheBounds
	c := &cobra.Command{Use: "set NAME", Short: "Change the bounds of a cache", Args: cobra.ExactArgs(1)}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		if err := checkName("cache", args[0]); err != nil {
			return err
		}
		body := map[string]any{}
		if err := bounds.fill(body); err != nil {
			return err
		}
		if len(body) == 0 {
			return usagef("nothing to set: give --max-bytes, --max-keys or --on-full")
		}
		return e.manage(c, func(ctx context.Context, m *manager) error {
			var k api.Cache
			if err := m.call(ctx, http.MethodPatch, body, &k, e.cachePath(m, args[0])...); err != nil {
				return err
			}
			return e.showCache(&k)
		})
	})
	bounds.register(c)
	return c
}

func (e *environment) cacheRemove() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "rm NAME", Short: "Remove a cache, its values and its counters", Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName("cache", args[0]); err != nil {
				return err
			}
			if err := e.confirm(yes, "remove cache %s, its values and its counters", args[0]); err != nil {
				return err
			}
			return e.manage(c, func(ctx context.Context, m *manager) error {
				if err := m.call(ctx, http.MethodDelete, nil, nil, e.cachePath(m, args[0])...); err != nil {
					return err
				}
				return e.show(map[string]string{"removed": args[0]}, "cache %s removed", args[0])
			})
		}),
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// errMiss ends a command that found no value; nothing is printed for it.
var errMiss = &exitError{exitMissing, errors.New("no value")}

// valueLine is a value with --json; null when there is none.
type valueLine struct {
	Key     string  `json:"key"`
	Value   *[]byte `json:"value"` // base64
	Version *uint64 `json:"version,omitempty"`
}

func (e *environment) cacheGet() *cobra.Command {
	var raw bool
	c := &cobra.Command{
		Use: "get CACHE KEY", Short: "Print the value of a key", Args: cobra.ExactArgs(2),
		Example: "  felix cache get sessions user:1\n  felix cache get images cat --raw > cat.jpg",
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		if raw && e.opts.json {
			return usagef("--raw and --json exclude each other")
		}
		return e.onCache(c, args[0], func(ctx context.Context, k *client.Cache) error {
			v, ok, err := k.Get(ctx, args[1])
			if err != nil {
				return err
			}
			if ok && raw {
				_, err := e.out.Write(v.Data)
				return err
			}
			return e.printValue(args[1], v.Data, &v.Version, ok)
		})
	})
	c.Flags().BoolVar(&raw, "raw", false, "the bytes of the value alone, without a line break behind them, on a terminal too")
	return c
}

func (e *environment) printValue(key string, value []byte, version *uint64, ok bool) error {
	switch {
	case !ok && e.opts.json:
		printJSON(e.out, valueLine{Key: key})
		return errMiss
	case !ok:
		return errMiss
	case e.opts.json:
		printJSON(e.out, valueLine{key, &value, version})
		return nil
	}
	_, err := fmt.Fprintf(e.out, "%s\n", e.payloads(false)(value))
	return err
}

func (e *environment) cachePut() *cobra.Command {
	var (
		ttl     int64
		absent  bool
		version uint64
		file    string
	)
	c := &cobra.Command{
		Use: "put CACHE KEY [VALUE]", Short: "Store a value; without one, standard input", Args: cobra.RangeArgs(2, 3),
		Example: "  felix cache put sessions user:1 online --ttl-ms 60000\n  felix cache put config flags --if-version 17 < flags.json",
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		hasTTL, hasVersion := c.Flags().Changed("ttl-ms"), c.Flags().Changed("if-version")
		switch {
		case hasTTL && ttl <= 0:
			return usagef("--ttl-ms %d: at least 1; leave it out to keep the value for ever", ttl)
		case absent && hasVersion:
			return usagef("--if-absent and --if-version exclude each other")
		case file != "" && len(args) == 3:
			return usagef("a value and --file exclude each other")
		}
		value, err := e.value(args, file)
		if err != nil {
			return err
		}
		var opts []client.PutOption
		if hasTTL {
			opts = append(opts, client.WithTTL(millis(ttl)))
		}
		return e.onCache(c, args[0], func(ctx context.Context, k *client.Cache) error {
			var cond client.Condition
			var err error
			switch {
			case absent:
				cond, err = k.PutIfAbsent(ctx, args[1], value, opts...)
			case hasVersion:
				cond, err = k.PutIfVersion(ctx, args[1], value, version, opts...)
			default:
				if err := k.Put(ctx, args[1], value, opts...); err != nil {
					return err
				}
				return e.show(map[string]any{"key": args[1], "applied": true}, "ok")
			}
			if err != nil {
				return err
			}
			return e.printCondition(args[1], cond)
		})
	})
	f := c.Flags()
	f.Int64Var(&ttl, "ttl-ms", 0, "the value expires after so many milliseconds")
	f.BoolVar(&absent, "if-absent", false, "only if the key has no value")
	f.Uint64Var(&version, "if-version", 0, "only if the value has this version")
	f.StringVar(&file, "file", "", "read the value from this file")
	return c
}

func (e *environment) printCondition(key string, cond client.Condition) error {
	line := map[string]any{"key": key, "applied": cond.Applied}
	if cond.Exists {
		line["version"] = cond.Version
	}
	if !cond.Applied {
		if e.opts.json {
			printJSON(e.out, line)
		}
		what := "the key has no value"
		if cond.Exists {
			what = fmt.Sprintf("the value has version %d", cond.Version)
		}
		return &exitError{exitRefused, errors.New("not written: " + what)}
	}
	return e.show(line, "ok")
}

// value is the third argument, a file or standard input.
func (e *environment) value(args []string, file string) ([]byte, error) {
	if len(args) == 3 {
		return []byte(args[2]), nil
	}
	in := e.in
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxMessage+1))
	if err == nil && len(raw) > maxMessage {
		err = usagef("value is over %d bytes", maxMessage)
	}
	return raw, err
}

func (e *environment) cacheDelete() *cobra.Command {
	var version uint64
	c := &cobra.Command{Use: "del CACHE KEY", Short: "Remove a key and print what was there", Args: cobra.ExactArgs(2)}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		return e.onCache(c, args[0], func(ctx context.Context, k *client.Cache) error {
			if c.Flags().Changed("if-version") {
				cond, err := k.DeleteIfVersion(ctx, args[1], version)
				if err != nil {
					return err
				}
				return e.printCondition(args[1], cond)
			}
			was, existed, err := k.Delete(ctx, args[1])
			if err != nil {
				return err
			}
			return e.printValue(args[1], was, nil, existed)
		})
	})
	c.Flags().Uint64Var(&version, "if-version", 0, "only if the value has this version")
	return c
}

func (e *environment) cacheKeys() *cobra.Command {
	var prefix string
	c := &cobra.Command{Use: "keys CACHE", Short: "List the keys of a cache", Args: cobra.ExactArgs(1)}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		return e.onCache(c, args[0], func(ctx context.Context, k *client.Cache) error {
			out := bufio.NewWriter(e.out)
			defer out.Flush()
			for after, more := "", true; more; {
				var keys []string
				var err error
				if keys, more, err = k.Keys(ctx, prefix, after, 1000); err != nil {
					return err
				}
				for _, key := range keys {
					if e.opts.json {
						printJSON(out, map[string]string{"key": key})
					} else {
						fmt.Fprintln(out, plain(key))
					}
					after = key
				}
				more = more && len(keys) > 0
			}
			return nil
		})
	})
	c.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with this")
	return c
}

// changeLine is a change of a key with --json.
type changeLine struct {
	Shard   int     `json:"shard"`
	Key     string  `json:"key"`
	Value   *[]byte `json:"value"` // base64; null: deleted
	Offset  uint64  `json:"offset"`
	Expires *string `json:"expires,omitempty"`
}

func (e *environment) cacheWatch() *cobra.Command {
	var (
		key, prefix   string
		retained, raw bool
		count         int
	)
	c := &cobra.Command{
		Use: "watch CACHE", Short: "Print the changes of keys as they come", Args: cobra.ExactArgs(1),
		Example: "  felix cache watch sessions --prefix user: --retained",
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		byKey := c.Flags().Changed("key")
		if byKey && c.Flags().Changed("prefix") {
			return usagef("--key and --prefix exclude each other")
		}
		if count < 0 {
			return usagef("--count %d: 0 is no end", count)
		}
		if err := checkName("cache", args[0]); err != nil {
			return err
		}
		return e.connected(c, func(ctx context.Context, cl *client.Client) error {
			k := cl.Cache(args[0])
			var opts []client.WatchOption
			if retained {
				opts = append(opts, client.WithRetained())
			}
			var w *client.Watch
			var err error
			if byKey {
				w, err = k.Watch(ctx, key, opts...)
			} else {
				w, err = k.WatchPrefix(ctx, prefix, opts...)
			}
			if err != nil {
				return err
			}
			defer w.Close()
			shown := e.payloads(raw)
			for n := 0; count == 0 || n < count; n++ {
				ch, err := w.Next(ctx)
				if err != nil {
					if ctx.Err() != nil {
						return nil // told to stop
					}
					return err
				}
				e.printChange(ch, shown)
			}
			return nil
		})
	})
	f := c.Flags()
	f.StringVar(&key, "key", "", "this key only")
	f.StringVar(&prefix, "prefix", "", "keys that begin with this")
	f.BoolVar(&retained, "retained", false, "begin with the values that are there")
	f.IntVar(&count, "count", 0, "end after so many changes; 0: never")
	f.BoolVar(&raw, "raw", false, rawUsage)
	return c
}

func (e *environment) printChange(ch client.Change, shown func([]byte) []byte) {
	if e.opts.json {
		line := changeLine{Shard: ch.Shard, Key: ch.Key, Offset: ch.Offset}
		if !ch.Deleted {
			line.Value = &ch.Value
		}
		if !ch.Expires.IsZero() {
			at := ch.Expires.UTC().Format(time.RFC3339Nano)
			line.Expires = &at
		}
		printJSON(e.out, line)
		return
	}
	if ch.Deleted {
		fmt.Fprintf(e.out, "- %s\n", plain(ch.Key))
	} else {
		fmt.Fprintf(e.out, "+ %s %s\n", plain(ch.Key), shown(ch.Value))
	}
}

func (e *environment) counterCommand() *cobra.Command {
	add := &cobra.Command{
		Use: "add CACHE KEY DELTA", Short: "Add to a counter and print the sum", Args: cobra.ExactArgs(3),
		Example: "  felix counter add stats visits 1\n  felix counter add stats visits -- -5",
		RunE: ran(func(c *cobra.Command, args []string) error {
			delta, err := strconv.ParseInt(args[2], 10, 64)
			if err != nil {
				return usagef("delta %q is not a 64-bit number", args[2])
			}
			return e.onCache(c, args[0], func(ctx context.Context, k *client.Cache) error {
				sum, err := k.Counters().Add(ctx, args[1], delta)
				if err != nil {
					return err
				}
				return e.show(map[string]any{"key": args[1], "value": sum}, "%d", sum)
			})
		}),
	}
	get := &cobra.Command{
		Use: "get CACHE KEY", Short: "Print a counter", Args: cobra.ExactArgs(2),
		RunE: ran(func(c *cobra.Command, args []string) error {
			return e.onCache(c, args[0], func(ctx context.Context, k *client.Cache) error {
				sum, ok, err := k.Counters().Get(ctx, args[1])
				switch {
				case err != nil:
					return err
				case !ok:
					if e.opts.json {
						printJSON(e.out, map[string]any{"key": args[1], "value": nil})
					}
					return &exitError{exitMissing, errors.New("never added to")}
				}
				return e.show(map[string]any{"key": args[1], "value": sum}, "%d", sum)
			})
		}),
	}
	return group("counter", "Add to and read counters", add, get)
}
