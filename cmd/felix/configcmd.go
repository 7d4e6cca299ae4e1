package main

import (
	"fmt"
	"sort"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/felixlog/felix/internal/config"
)

// settingFlags adds a flag for every line of the settings table.
func settingFlags(fs *pflag.FlagSet) {
	var defaults config.Options
	for _, s := range config.Settings(&defaults) {
		help := fmt.Sprintf("%s [%s]", s.Help, s.Env)
		fs.Var(&settingValue{kind: s.Kind, text: s.Default}, s.Flag, help)
		if s.Kind == "bool" {
			fs.Lookup(s.Flag).NoOptDefVal = "true"
		}
	}
	fs.String("config", "", "YAML file of settings [FELIX_CONFIG]")
}

// settingValue keeps a flag's text; the table reads it.
type settingValue struct{ kind, text string }

func (v *settingValue) String() string     { return v.text }
func (v *settingValue) Set(s string) error { v.text = s; return nil }
func (v *settingValue) Type() string       { return v.kind }

// settings loads the configuration from the command's flags and the environment.
func (e *environment) settings(c *cobra.Command) (*config.Config, error) {
	src := config.Sources{Environ: e.environ, Flags: map[string]string{}, File: e.getenv("FELIX_CONFIG")}
	c.Flags().Visit(func(f *pflag.Flag) {
		switch v := f.Value.(type) {
		case *settingValue:
			src.Flags[f.Name] = v.text
		default:
			if f.Name == "config" {
				src.File = f.Value.String()
			}
		}
	})
	cfg, err := config.Load(src)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return cfg, nil
}

func (e *environment) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Print every setting of the broker, its value and where it came from",
		Long:  "Print every setting of the broker, its value and where it came from.\nTakes the flags of `felix serve`; flags beat the environment, which beats the file, which beats the defaults.",
		Args:  cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error {
			cfg, err := e.settings(c)
			if err != nil {
				return err
			}
			for _, name := range cfg.UnknownEnv {
				fmt.Fprintf(e.err, "felix: %s looks like a setting and is none\n", name)
			}
			if e.opts.json {
				printJSON(e.out, items[config.Entry]{cfg.Entries})
				return nil
			}
			var rows [][]string
			for _, s := range cfg.Entries {
				rows = append(rows, []string{s.Path, s.Value, s.Source})
			}
			return table(e.out, []string{"SETTING", "VALUE", "FROM"}, rows)
		}),
	}
	settingFlags(c.Flags())
	return c
}

func (e *environment) contextCommand() *cobra.Command {
	return group("context", "List, show and choose contexts", e.contextList(), e.contextShow(), e.contextUse())
}

func (e *environment) contexts() (string, *config.Contexts, error) {
	file := e.opts.contextFile
	if file == "" {
		var err error
		if file, err = config.ContextPath(e.getenv); err != nil {
			return "", nil, &exitError{exitUsage, err}
		}
	}
	all, err := config.ReadContexts(file)
	if err != nil {
		return "", nil, &exitError{exitUsage, err}
	}
	return file, all, nil
}

func (e *environment) contextList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the contexts", Args: cobra.NoArgs,
		RunE: ran(func(*cobra.Command, []string) error {
			_, all, err := e.contexts()
			if err != nil {
				return err
			}
			names := []string{}
			for name := range all.Contexts {
				names = append(names, name)
			}
			sort.Strings(names)
			type item struct {
				Name    string `json:"name"`
				Current bool   `json:"current"`
				config.Context
			}
			list := []item{}
			var rows [][]string
			for _, name := range names {
				k := all.Contexts[name]
				list = append(list, item{name, name == all.Current, k})
				mark := ""
				if name == all.Current {
					mark = "*"
				}
				rows = append(rows, []string{mark, name, fmt.Sprint(k.Brokers), k.HTTP, k.Tenant, k.Namespace})
			}
			if e.opts.json {
				printJSON(e.out, items[item]{list})
				return nil
			}
			return table(e.out, []string{"", "NAME", "BROKERS", "HTTP", "TENANT", "NAMESPACE"}, rows)
		}),
	}
}

func (e *environment) contextShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show what the commands would use, flags and variables included", Args: cobra.NoArgs,
		RunE: ran(func(*cobra.Command, []string) error {
			id, err := e.identity()
			if err != nil {
				return err
			}
			if e.opts.json {
				printJSON(e.out, id.Context)
				return nil
			}
			return table(e.out, []string{"context", id.name}, [][]string{
				{"brokers", fmt.Sprint(id.Brokers)}, {"http", id.HTTP}, {"tenant", id.Tenant}, {"namespace", id.Namespace},
				{"server name", id.ServerName}, {"ca file", id.CAFile}, {"signing key", id.SigningKey},
			})
		}),
	}
}

func (e *environment) contextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: cobra.ExactArgs(1),
		RunE: ran(func(_ *cobra.Command, args []string) error {
			file, all, err := e.contexts()
			if err != nil {
				return err
			}
			if _, ok := all.Contexts[args[0]]; !ok {
				return &exitError{exitMissing, fmt.Errorf("no context %q in %s", args[0], file)}
			}
			all.Current = args[0]
			if err := all.Write(file); err != nil {
				return err
			}
			return e.show(map[string]string{"current": args[0]}, "context %s is now used", args[0])
		}),
	}
}
