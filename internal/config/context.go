package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// LocalContext is the name of the context a first start writes.
const LocalContext = "local"

// maxContextFile bounds what is read as a context file, in bytes.
const maxContextFile = 1 << 20

// Context says how commands reach a broker and who they are.
type Context struct {
	Brokers    []string `yaml:"brokers,omitempty" json:"brokers,omitempty"` // host:port, the first that answers is used
	HTTP       string   `yaml:"http,omitempty" json:"http,omitempty"`       // base URL of the HTTP API
	Tenant     string   `yaml:"tenant,omitempty" json:"tenant,omitempty"`
	Namespace  string   `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	ServerName string   `yaml:"server_name,omitempty" json:"server_name,omitempty"` // name the broker's certificate must carry
	CAFile     string   `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	HTTPCAFile string   `yaml:"http_ca_file,omitempty" json:"http_ca_file,omitempty"`
	// SigningKey is a private key that commands mint short-lived tokens from. The
	// token files, where given, are used instead.
	SigningKey    string `yaml:"signing_key,omitempty" json:"signing_key,omitempty"`
	TokenFile     string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
	HTTPTokenFile string `yaml:"http_token_file,omitempty" json:"http_token_file,omitempty"`
}

// Contexts is the context file.
type Contexts struct {
	Current  string             `yaml:"current,omitempty" json:"current,omitempty"`
	Contexts map[string]Context `yaml:"contexts" json:"contexts"`
}

// ContextPath is where the user's context file is: FELIX_CLI_CONFIG if lookup has
// it, else felix/context.yaml in the user's configuration folder.
func ContextPath(lookup func(string) string) (string, error) {
	if name := lookup("FELIX_CLI_CONFIG"); name != "" {
		return name, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("context file: %w; name one with FELIX_CLI_CONFIG", err)
	}
	return filepath.Join(dir, "felix", "context.yaml"), nil
}

// ReadContexts reads a context file; a missing one is empty. Unknown keys are refused.
func ReadContexts(name string) (*Contexts, error) {
	c := &Contexts{}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("context file: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, fmt.Errorf("context file: %w", err)
	} else if info.Size() > maxContextFile {
		return nil, fmt.Errorf("context file %s: %d bytes are too many", name, info.Size())
	} else if info.Size() == 0 {
		return c, nil
	}
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("context file %s: %w", name, err)
	}
	if _, ok := c.Contexts[c.Current]; c.Current != "" && !ok {
		return nil, fmt.Errorf("context file %s: the current context %q is not in it", name, c.Current)
	}
	return c, nil
}

// Write replaces the file, mode 0600, making its folder when needed.
func (c *Contexts) Write(name string) error {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("context file: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("context file: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return fmt.Errorf("context file: %w", err)
	}
	// CreateTemp makes it 0600.
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("context file: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
