package node

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/broker"
)

// secretPlaces are the directories of keys and certificates and what belongs there. Those
// that an operator keeps elsewhere are the operator's.
func (n *Node) secretPlaces() []broker.Place {
	file := func(own func(string) bool) func(fs.DirEntry) bool {
		return func(e fs.DirEntry) bool { return !e.IsDir() && own(e.Name()) }
	}
	places := []broker.Place{
		{Dir: n.data.Path(tlsDir), Own: file(auth.OwnCertificateFile)},
		{Dir: n.data.Path(keysDir), Own: func(e fs.DirEntry) bool { return e.IsDir() && auth.OwnTenantDir(e.Name()) }},
	}
	if n.o.Config.Auth.Keys == "" {
		for _, tenant := range n.creds.keys.Tenants() {
			places = append(places, broker.Place{Dir: n.data.Path(keysDir, tenant), Own: file(auth.OwnKeyFile)})
		}
	}
	return places
}

// reportStrays warns of what is not Felix's in the places. A place that is missing is
// empty; one that is a file is a stray of the place around it.
func (n *Node) reportStrays(places []broker.Place) error {
	for _, p := range places {
		entries, err := n.o.FS.ReadDir(p.Dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return &DirError{Dir: p.Dir, Err: cause(err), Hint: hint(err)}
		}
		for _, e := range entries {
			if !p.Own(e) {
				n.log.Warn("file is not Felix's and is left alone", "dir", p.Dir, "file", e.Name())
			}
		}
	}
	return nil
}
