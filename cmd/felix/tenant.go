package main

import (
	"context"
	"net/http"

	"github.com/spf13/cobra"
)

// bounded is the command's context with --timeout.
func (e *environment) bounded(c *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.Context(), e.opts.timeout)
}

type tenantItem struct {
	TenantID    string `json:"tenant_id"`
	DisplayName string `json:"display_name"`
}

type namespaceItem struct {
	TenantID    string `json:"tenant_id,omitempty"`
	Namespace   string `json:"namespace"`
	DisplayName string `json:"display_name"`
}

func (e *environment) tenantCommand() *cobra.Command {
	path := func(_ *manager, name ...string) []string { return append([]string{"v1", "tenants"}, name...) }
	var display string
	create := e.creator("tenant", path, func(name string) any { return tenantItem{name, first(display, name)} })
	create.Flags().StringVar(&display, "display-name", "", "name for people")
	return group("tenant", "Create, list and remove tenants", create,
		lister(e, path, "TENANT", func(t tenantItem) []string { return []string{t.TenantID, t.DisplayName} }),
		e.remover("tenant", "and everything in it", path))
}

func (e *environment) namespaceCommand() *cobra.Command {
	path := func(m *manager, name ...string) []string {
		return append([]string{"v1", "tenants", m.Tenant, "namespaces"}, name...)
	}
	var display string
	create := e.creator("namespace", path, func(name string) any {
		return namespaceItem{Namespace: name, DisplayName: first(display, name)}
	})
	create.Flags().StringVar(&display, "display-name", "", "name for people")
	return group("namespace", "Create, list and remove namespaces", create,
		lister(e, path, "NAMESPACE", func(n namespaceItem) []string { return []string{n.Namespace, n.DisplayName} }),
		e.remover("namespace", "and everything in it", path))
}

type pathFunc func(m *manager, name ...string) []string

func (e *environment) creator(what string, path pathFunc, body func(name string) any) *cobra.Command {
	return &cobra.Command{
		Use: "create NAME", Short: "Create a " + what, Args: cobra.ExactArgs(1),
		RunE: ran(func(c *cobra.Command, args []string) error {
			if err := checkName(what, args[0]); err != nil {
				return err
			}
			m, err := e.manager()
			if err != nil {
				return err
			}
			ctx, cancel := e.bounded(c)
			defer cancel()
			var made any
			if err := m.call(ctx, http.MethodPost, body(args[0]), &made, path(m)...); err != nil {
				return err
			}
			return e.show(made, "%s %s created", what, args[0])
		}),
	}
}

// lister is a function, not a method: it has a type parameter.
func lister[T any](e *environment, path pathFunc, head string, row func(T) []string) *cobra.Command {
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
			return table(e.out, []string{head, "DISPLAY NAME"}, rows)
		}),
	}
}

func (e *environment) remover(what, more string, path pathFunc) *cobra.Command {
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
