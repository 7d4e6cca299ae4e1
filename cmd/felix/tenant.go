package main

import (
	"context"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/api"
	"github.com/felixlog/felix/internal/config"
)

// bounded is the command's context with --timeout.
func (e *environment) bounded(c *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context(), e.opts.timeout)
}

// within runs one request of a command that makes many.
func (e *environment) within(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.timeout)
	defer cancel()
	return request(ctx)
}

type namespaceItem struct {
	TenantID    string `json:"tenant_id,omitempty"`
	Namespace   string `json:"namespace"`
	DisplayName string `json:"display_name"`
}

func (e *environment) tenantCommand() *cobra.Command {
	path := func(_ *manager, name ...string) []string { return append([]string{"v1", "tenants"}, name...) }
	var set tenantFlags
	create := e.creator("tenant", path, func(name string) (any, error) {
		body := map[string]any{"tenant_id": name, "display_name": name}
		return body, set.fill(body)
	})
	set.register(create)
	return group("tenant", "Create, list, change and remove tenants", create,
		lister(e, path, []string{"TENANT", "DISPLAY NAME", "BYTES/S", "RECORDS/S"}, func(t api.Tenant) []string {
			q := quotaOf(t.Quota)
			return []string{t.TenantID, t.DisplayName, rateText(q.BytesPerSecond, config.FormatBytes), rateText(q.RecordsPerSecond, showInt)}
		}),
		e.tenantSet(path), e.tenantRemove(path))
}

// tenantFlags are what may be set of a tenant.
type tenantFlags struct{ display, bytes, records string }

func (t *tenantFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.display, "display-name", "", "name for people")
	f.StringVar(&t.bytes, "bytes-per-second", "", "payload bytes it may write a second on a broker, as in 10MiB; none: no bound; default: the broker's own")
	f.StringVar(&t.records, "records-per-second", "", "records it may write a second on a broker; none: no bound; default: the broker's own")
}

// fill puts the flags given into body.
func (t *tenantFlags) fill(body map[string]any) error {
	if t.display != "" {
		body["display_name"] = t.display
	}
	quota := map[string]any{}
	for _, q := range []struct {
		flag, text, field string
		parse             func(string) (int64, error)
	}{
		{"--bytes-per-second", t.bytes, "bytes_per_second", config.ParseBytes},
		{"--records-per-second", t.records, "records_per_second", func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }},
	} {
		switch q.text {
		case "":
		case "none":
			quota[q.field] = 0
		case "default":
			quota[q.field] = nil
		default:
			n, err := q.parse(q.text)
			if err != nil || n <= 0 {
				return usagef("%s %q is not a positive number, none or default", q.flag, q.text)
			}
			quota[q.field] = n
		}
	}
	if len(quota) > 0 {
		body["quota"] = quota
	}
	return nil
}

func (e *environment) tenantSet(path pathFunc) *cobra.Command {
	var set tenantFlags
	c := &cobra.Command{
		Use: "set NAME", Short: "Change a tenant's name for people, or how fast it may write", Args: cobra.ExactArgs(1),
		Example: "  felix tenant set acme --bytes-per-second 10MiB --records-per-second default",
	}
	c.RunE = ran(func(c *cobra.Command, args []string) error {
		if err := checkName("tenant", args[0]); err != nil {
			return err
		}
		body := map[string]any{}
		if err := set.fill(body); err != nil {
			return err
		}
		if len(body) == 0 {
			return usagef("nothing to set: give --display-name, --bytes-per-second or --records-per-second")
		}
		return e.manage(c, func(ctx context.Context, m *manager) error {
			var t api.Tenant
			if err := m.call(ctx, http.MethodPatch, body, &t, path(m, args[0])...); err != nil {
				return err
			}
			q := quotaOf(t.Quota)
			return e.show(&t, "tenant %s: %s bytes/s, %s records/s", args[0], rateText(q.BytesPerSecond, config.FormatBytes), rateText(q.RecordsPerSecond, showInt))
		})
	})
	set.register(c)
	return c
}

// tenantRemove refuses the tenant that the commands are of, unless it is meant.
func (e *environment) tenantRemove(path pathFunc) *cobra.Command {
	var force bool
	c := e.remover("tenant", "and everything in it", path, func(m *manager, name string) error {
		if force || name != m.owner && name != m.Tenant {
			return nil
		}
		return usagef("tenant %s is the one that these commands sign as: its streams, caches and signing keys would go, and the broker would refuse "+
			"the commands from then on (started again, it makes an empty tenant %s with a new key, if the keys are of its own making); --force does it",
			name, "default")
	})
	c.Flags().BoolVar(&force, "force", false, "also the tenant that the commands sign as")
	return c
}

// quotaOf is a quota that may be absent.
func quotaOf(q *api.Quota) api.Quota {
	if q == nil {
		return api.Quota{}
	}
	return *q
}

func showInt(n int64) string { return strconv.FormatInt(n, 10) }

// rateText shows one bound of a quota in the words of the flags.
func rateText(v *int64, show func(int64) string) string {
	switch {
	case v == nil:
		return "default"
	case *v == 0:
		return "none"
	}
	return show(*v)
}

func (e *environment) namespaceCommand() *cobra.Command {
	path := func(m *manager, name ...string) []string {
		return append([]string{"v1", "tenants", m.Tenant, "namespaces"}, name...)
	}
	var display string
	create := e.creator("namespace", path, func(name string) (any, error) {
		return namespaceItem{Namespace: name, DisplayName: first(display, name)}, nil
	})
	create.Flags().StringVar(&display, "display-name", "", "name for people")
	return group("namespace", "Create, list and remove namespaces", create,
		lister(e, path, []string{"NAMESPACE", "DISPLAY NAME"}, func(n namespaceItem) []string { return []string{n.Namespace, n.DisplayName} }),
		e.remover("namespace", "and everything in it", path, func(*manager, string) error { return nil }))
}

type pathFunc func(m *manager, name ...string) []string

func (e *environment) creator(what string, path pathFunc, body func(name string) (any, error)) *cobra.Command {
	return &cobra.Command{
		Use: "create NAME", Short: "Create a " + what, Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName(what, args[0]); err != nil {
				return err
			}
			create, err := body(args[0])
			if err != nil {
				return err
			}
			m, err := e.manager()
			if err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			var made any
			if err := m.call(ctx, http.MethodPost, create, &made, path(m)...); err != nil {
				return err
			}
			return e.show(made, "%s %s created", what, args[0])
		}),
	}
}

// lister is a function, not a method: it has a type parameter.
func lister[T any](e *environment, path pathFunc, head []string, row func(T) []string) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List them", Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error {
			m, err := e.manager()
			if err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			all, err := listAll[T](ctx, m, path(m)...)
			if err != nil {
				return err
			}
			if e.opts.json {
				printJSON(e.out, items[T]{all})
				return nil
			}
			var rows [][]string
			for _, item := range all {
				rows = append(rows, row(item))
			}
			return table(e.out, head, rows)
		}),
	}
}

// remover asks guard before it asks the user.
func (e *environment) remover(what, more string, path pathFunc, guard func(m *manager, name string) error) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "rm NAME", Short: "Remove a " + what + " " + more, Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName(what, args[0]); err != nil {
				return err
			}
			m, err := e.manager()
			if err != nil {
				return err
			}
			if err := guard(m, args[0]); err != nil {
				return err
			}
			if err := e.confirm(yes, "remove %s %s %s", what, args[0], more); err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			if err := m.call(ctx, http.MethodDelete, nil, nil, path(m, args[0])...); err != nil {
				return err
			}
			return e.show(map[string]string{"removed": args[0]}, "%s %s removed", what, args[0])
		}),
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}
