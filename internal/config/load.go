package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Sources is where Load looks, the strongest first.
type Sources struct {
	Flags   map[string]string // flag name without dashes to text; only flags that were given
	Environ []string          // as os.Environ gives it
	File    string            // YAML file; empty: none
}

// Entry is one setting with its value and where it came from.
type Entry struct {
	Path   string `json:"path"`
	Value  string `json:"value"`
	Source string `json:"source"` // "default", "file NAME:LINE", "environment NAME", "flag --NAME"
}

// Config is what Load found.
type Config struct {
	Options Options
	Entries []Entry
	// UnknownEnv names variables that begin with FELIX_ and are no setting of the
	// broker and none the clients read. Worth a warning, since a misspelt name is
	// otherwise not noticed.
	UnknownEnv []string
}

// clientEnv is read by the commands, not by the broker.
var clientEnv = map[string]bool{
	"FELIX_CONFIG": true, "FELIX_CONTEXT": true, "FELIX_CLI_CONFIG": true, "FELIX_BROKERS": true, "FELIX_AUTH_TENANT": true,
	"FELIX_NAMESPACE": true, "FELIX_AUTH_TOKEN": true, "FELIX_AUTH_TOKEN_FILE": true, "FELIX_CONTROLPLANE_URL": true,
	"FELIX_CONTROLPLANE_TOKEN": true, "FELIX_CONTROLPLANE_TOKEN_FILE": true, "FELIX_CA_FILE": true, "FELIX_CONTROLPLANE_CA": true,
	"FELIX_SERVER_NAME": true, "FELIX_PUBLISH_INFLIGHT_BYTES": true,
}

// Load reads the sources and checks the result. All mistakes found are joined
// into one error; each names the setting, where it was given and what is allowed.
func Load(src Sources) (*Config, error) {
	c := &Config{}
	table := Settings(&c.Options)
	index := make(map[string]int, len(table))
	from := make([]string, len(table))
	var errs []error
	for i := range table {
		s := &table[i]
		index[s.Path] = i
		from[i] = "default"
		if err := s.set(s.Default); err != nil {
			return nil, fmt.Errorf("default of %s: %w", s.Path, err)
		}
	}
	apply := func(i int, value, source string) {
		if err := table[i].set(value); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", table[i].Path, source, err))
			return
		}
		from[i] = source
	}
	if src.File != "" {
		keys, err := readFile(src.File)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			i, ok := index[k.path]
			if !ok {
				errs = append(errs, fmt.Errorf("%s:%d: unknown setting %q%s", src.File, k.line, k.path, nearest(k.path, table)))
				continue
			}
			apply(i, k.value, fmt.Sprintf("file %s:%d", src.File, k.line))
		}
	}
	env := make(map[string]string, len(src.Environ))
	for _, kv := range src.Environ {
		if name, value, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(name, "FELIX_") {
			env[name] = value
		}
	}
	for i := range table {
		if v, ok := env[table[i].Env]; ok {
			apply(i, v, "environment "+table[i].Env)
			delete(env, table[i].Env)
		}
	}
	for name := range env {
		if !clientEnv[name] {
			c.UnknownEnv = append(c.UnknownEnv, name)
		}
	}
	sort.Strings(c.UnknownEnv)
	for i := range table {
		if v, ok := src.Flags[table[i].Flag]; ok {
			apply(i, v, "flag --"+table[i].Flag)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i := range table {
		c.Entries = append(c.Entries, Entry{Path: table[i].Path, Value: table[i].Value(), Source: from[i]})
	}
	if err := c.Options.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// Defaults are the options with nothing given.
func Defaults() Options {
	c, err := Load(Sources{})
	if err != nil {
		// The table itself is wrong; TestDefaults holds that it is not.
		return Options{}
	}
	return c.Options
}

type fileKey struct {
	path, value string
	line        int
}

// readFile flattens the mappings of a YAML file into dotted paths.
func readFile(name string) ([]fileKey, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("settings file: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("settings file %s: %w", filepath.Clean(name), err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	var keys []fileKey
	seen := map[string]int{}
	var walk func(n *yaml.Node, prefix string) error
	walk = func(n *yaml.Node, prefix string) error {
		if n.Kind != yaml.MappingNode {
			return fmt.Errorf("%s:%d: %q must be a mapping of settings", name, n.Line, strings.TrimSuffix(prefix, "."))
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			path := prefix + k.Value
			switch v.Kind {
			case yaml.MappingNode:
				if err := walk(v, path+"."); err != nil {
					return err
				}
			case yaml.ScalarNode:
				if first, ok := seen[path]; ok {
					return fmt.Errorf("%s:%d: %s is given twice, first in line %d", name, k.Line, path, first)
				}
				seen[path] = k.Line
				keys = append(keys, fileKey{path, v.Value, k.Line})
			default:
				return fmt.Errorf("%s:%d: %s must be a single value", name, k.Line, path)
			}
		}
		return nil
	}
	if err := walk(doc.Content[0], ""); err != nil {
		return nil, err
	}
	return keys, nil
}

// nearest suggests the setting a misspelt path most likely meant.
func nearest(path string, table []Setting) string {
	best, cost := "", 4
	for i := range table {
		if d := distance(path, table[i].Path); d < cost {
			best, cost = table[i].Path, d
		}
	}
	if best == "" {
		return "; `felix config` lists all"
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the Levenshtein distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			subst := prev
			if a[i-1] != b[j-1] {
				subst++
			}
			prev = row[j]
			row[j] = min(subst, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
