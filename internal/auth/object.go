package auth

import (
	"fmt"
	"strings"

	"github.com/felixlog/felix/wire"
)

// Kind says what sort of thing an [Object] names.
type Kind uint8

// The kinds of object a permission can name.
const (
	KindTenant Kind = iota + 1
	KindNamespace
	KindStream
	KindCache
	KindGroup
	KindNode
	KindCluster
)

var kindNames = [...]string{
	KindTenant: "tenant", KindNamespace: "namespace", KindStream: "stream", KindCache: "cache",
	KindGroup: "group", KindNode: "node", KindCluster: "cluster",
}

// String returns the kind as permission strings spell it.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

func parseKind(s string) (Kind, bool) {
	for k, name := range kindNames {
		if name == s && name != "" {
			return Kind(k), true
		}
	}
	return 0, false
}

// wildcard is the segment that matches any name. No name can contain it.
const wildcard = "*"

// Object is what an action is done to, or, in a grant, the set of things it may be
// done to: then trailing names may be "*", and a cache key may be a prefix.
//
// The zero Object matches nothing.
type Object struct {
	Kind      Kind
	Tenant    string
	Namespace string
	// Name is the stream, the cache, or the node id.
	Name string
	// Group is set for [KindGroup].
	Group string
	// Key is a cache key, or the leading part of one when KeyPrefix is set. It counts
	// only with HasKey: the empty key is a key.
	Key       string
	HasKey    bool
	KeyPrefix bool
}

// StreamObject names one stream.
func StreamObject(tenant, namespace, stream string) Object {
	return Object{Kind: KindStream, Tenant: tenant, Namespace: namespace, Name: stream}
}

// CacheObject names a whole cache.
func CacheObject(tenant, namespace, cache string) Object {
	return Object{Kind: KindCache, Tenant: tenant, Namespace: namespace, Name: cache}
}

// CacheKeyObject names one key of a cache.
func CacheKeyObject(tenant, namespace, cache, key string) Object {
	return Object{Kind: KindCache, Tenant: tenant, Namespace: namespace, Name: cache, Key: key, HasKey: true}
}

// CachePrefixObject names every key of a cache that starts with prefix. The empty
// prefix is the whole cache.
func CachePrefixObject(tenant, namespace, cache, prefix string) Object {
	if prefix == "" {
		return CacheObject(tenant, namespace, cache)
	}
	return Object{Kind: KindCache, Tenant: tenant, Namespace: namespace, Name: cache, Key: prefix, HasKey: true, KeyPrefix: true}
}

// GroupObject names one consumer group of a stream.
func GroupObject(tenant, namespace, stream, group string) Object {
	return Object{Kind: KindGroup, Tenant: tenant, Namespace: namespace, Name: stream, Group: group}
}

// NamespaceObject names one namespace.
func NamespaceObject(tenant, namespace string) Object {
	return Object{Kind: KindNamespace, Tenant: tenant, Namespace: namespace}
}

// TenantObject names one tenant.
func TenantObject(tenant string) Object { return Object{Kind: KindTenant, Tenant: tenant} }

// ClusterObject is the one object outside every tenant.
func ClusterObject() Object { return Object{Kind: KindCluster} }

// String returns the object as permission strings spell it.
func (o Object) String() string {
	switch o.Kind {
	case KindTenant:
		return "tenant:" + o.Tenant
	case KindNamespace:
		return "namespace:" + o.Tenant + "/" + o.Namespace
	case KindStream:
		return "stream:" + o.Tenant + "/" + o.Namespace + "/" + o.Name
	case KindCache:
		s := "cache:" + o.Tenant + "/" + o.Namespace + "/" + o.Name
		if o.HasKey {
			s += "/" + o.Key
		}
		if o.KeyPrefix {
			s += wildcard
		}
		return s
	case KindGroup:
		return "group:" + o.Tenant + "/" + o.Namespace + "/" + o.Name + "/" + o.Group
	case KindNode:
		return "node:" + o.Name
	case KindCluster:
		return "cluster:*"
	}
	return o.Kind.String() + ":"
}

// ParseObject reads an object as a grant spells it: "kind:rest", with "*" allowed
// for trailing names only. The error is a [*PermissionError].
func ParseObject(s string) (Object, error) {
	kindName, rest, ok := strings.Cut(s, ":")
	if !ok {
		return Object{}, objectError(s, "has no kind: write it as kind:name")
	}
	kind, ok := parseKind(kindName)
	if !ok {
		return Object{}, objectError(s, "has an unknown kind "+quote(kindName))
	}
	o := Object{Kind: kind}
	switch kind {
	case KindCluster:
		if rest != wildcard {
			return Object{}, objectError(s, "has another spelling than cluster:*")
		}
		return o, nil
	case KindTenant, KindNode:
		if !validName(rest) {
			return Object{}, objectError(s, "needs one exact name, and a wildcard is none")
		}
		if kind == KindTenant {
			o.Tenant = rest
		} else {
			o.Name = rest
		}
		return o, nil
	}

	want := map[Kind]int{KindNamespace: 2, KindStream: 3, KindCache: 4, KindGroup: 4}[kind]
	parts := strings.SplitN(rest, "/", want)
	o.Tenant = parts[0]
	if !validName(o.Tenant) {
		return Object{}, objectError(s, "needs an exact tenant")
	}
	names := parts[1:]
	if kind == KindCache && len(names) == 3 {
		key := names[2]
		names = names[:2]
		if names[0] == wildcard || names[1] == wildcard {
			return Object{}, objectError(s, "has a wildcard before a key")
		}
		o.HasKey = true
		if o.Key, o.KeyPrefix = strings.CutSuffix(key, wildcard); o.Key == "" {
			return Object{}, objectError(s, "names a key that is empty or a bare wildcard: leave the key out to mean every key")
		}
	}
	least := map[Kind]int{KindNamespace: 1, KindStream: 2, KindCache: 2, KindGroup: 3}[kind]
	if len(names) != least {
		return Object{}, objectError(s, fmt.Sprintf("has %d names below the tenant and needs %d", len(names), least))
	}
	wild := false
	for _, name := range names {
		switch {
		case name == wildcard:
			wild = true
		case wild:
			return Object{}, objectError(s, "has a name below a wildcard")
		case !validName(name):
			return Object{}, objectError(s, "has an unusable name "+quote(name))
		}
	}
	o.Namespace = names[0]
	if len(names) > 1 {
		o.Name = names[1]
	}
	if len(names) > 2 {
		o.Group = names[2]
	}
	return o, nil
}

// covers reports whether every thing named by target is named by pattern. target
// holds no wildcards apart from a key prefix.
func (pattern Object) covers(target Object) bool {
	if pattern.Kind != target.Kind || pattern.Kind == 0 || pattern.Tenant != target.Tenant {
		return false
	}
	if !segment(pattern.Namespace, target.Namespace) || !segment(pattern.Name, target.Name) || !segment(pattern.Group, target.Group) {
		return false
	}
	if !pattern.HasKey {
		return true
	}
	switch {
	case !target.HasKey:
		return false
	case pattern.KeyPrefix:
		return strings.HasPrefix(target.Key, pattern.Key)
	default:
		return !target.KeyPrefix && target.Key == pattern.Key
	}
}

// mayCoverGroupOf reports whether pattern, a group object, could cover some group
// of the stream.
func (pattern Object) mayCoverGroupOf(stream Object) bool {
	return pattern.Kind == KindGroup && pattern.Tenant == stream.Tenant &&
		segment(pattern.Namespace, stream.Namespace) && segment(pattern.Name, stream.Name)
}

func segment(pattern, name string) bool { return pattern == name || pattern == wildcard }

func validName(s string) bool { return wire.ValidName(s) == nil }
