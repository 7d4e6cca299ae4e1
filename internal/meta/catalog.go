package meta

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Listing limits.
const (
	// DefaultListLimit is what a limit of zero means.
	DefaultListLimit = 1000
	// MaxListLimit is the most a listing returns at once.
	MaxListLimit = 10_000
)

// maxAttempts bounds the compare-and-set loops; more lost races than this are
// reported as ErrConflict.
const maxAttempts = 64

// CatalogOptions configures a Catalog.
type CatalogOptions struct {
	// Random gives incarnations; nil reads crypto/rand. A zero is drawn again.
	Random func() uint64
}

// Catalog is the typed layer over a Store: definitions with their checks, and a watch
// of typed changes. It keeps nothing of its own. Methods may be called from several
// goroutines.
type Catalog struct {
	store  Store
	random func() uint64
}

// NewCatalog makes a catalog over store.
func NewCatalog(store Store) *Catalog { return NewCatalogWith(store, CatalogOptions{}) }

// NewCatalogWith makes a catalog with options.
func NewCatalogWith(store Store, o CatalogOptions) *Catalog {
	if o.Random == nil {
		o.Random = func() uint64 {
			var b [8]byte
			rand.Read(b[:]) // never fails: crypto/rand ends the process instead
			return binary.BigEndian.Uint64(b[:])
		}
	}
	return &Catalog{store: store, random: o.Random}
}

// Store is the store below.
func (c *Catalog) Store() Store { return c.store }

// Keys. Names hold no slash, so a key has one reading.
const (
	tenantPrefix     = "def/tenant/"
	namespacePrefix  = "def/namespace/"
	streamPrefix     = "def/stream/"
	cachePrefix      = "def/cache/"
	nodePrefix       = "def/node/"
	assignmentPrefix = "def/assignment/"
	catalogPrefix    = "def/"
)

func tenantKey(t string) string              { return tenantPrefix + t }
func namespaceKey(t, ns string) string       { return namespacePrefix + t + "/" + ns }
func streamKey(n Name) string                { return streamPrefix + n.String() }
func cacheKey(n Name) string                 { return cachePrefix + n.String() }
func nodeKey(id NodeID) string               { return nodePrefix + string(id) }
func namesBelow(prefix, t, ns string) string { return prefix + t + "/" + ns + "/" }

// AssignmentKey is the store key of a shard's assignment, for transactions that
// compare it.
func AssignmentKey(k ShardKey) string {
	return assignmentPrefix + string(k.Kind) + "/" + k.Name.String() + "/" + strconv.FormatUint(uint64(k.Shard), 10)
}

// EncodeAssignment is the stored form of an assignment.
func EncodeAssignment(a *Assignment) []byte { return encode(a) }

// DecodeAssignment reads the stored form.
func DecodeAssignment(value []byte) (*Assignment, error) {
	return decode[Assignment]("assignment", value)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		// The model holds strings, numbers, booleans and maps of strings: all encode.
		panic(fmt.Sprintf("meta: encode %T: %v", v, err))
	}
	return b
}

func decode[T any](object string, value []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(value, v); err != nil {
		return nil, fmt.Errorf("decode %s: %w", object, err)
	}
	return v, nil
}

// CreateTenant makes a tenant. created is false when an identical one exists; a
// different one is an *ExistsError.
func (c *Catalog) CreateTenant(ctx context.Context, t Tenant) (created bool, err error) {
	if err := t.Validate(); err != nil {
		return false, err
	}
	t.Deleting = false
	object := "tenant " + t.ID
	return One(c.create(ctx, object, nil, creation{tenantKey(t.ID), encode(&t), func(value []byte) error {
		have, err := decode[Tenant](object, value)
		if err != nil {
			return err
		}
		return diff(object, field{"lifecycle", have.Deleting, false}, field{"display_name", have.DisplayName, t.DisplayName}, field{"quota", have.Quota, t.Quota})
	}}))
}

// CreateNamespace makes a namespace in an existing tenant.
func (c *Catalog) CreateNamespace(ctx context.Context, n Namespace) (created bool, err error) {
	if err := n.Validate(); err != nil {
		return false, err
	}
	n.Deleting = false
	object := "namespace " + n.Tenant + "/" + n.Name
	return One(c.create(ctx, object, []parent{tenantParent(n.Tenant)}, creation{namespaceKey(n.Tenant, n.Name), encode(&n), func(value []byte) error {
		have, err := decode[Namespace](object, value)
		if err != nil {
			return err
		}
		return diff(object, field{"lifecycle", have.Deleting, false}, field{"display_name", have.DisplayName, n.DisplayName})
	}}))
}

// CreateStream makes a stream in an existing namespace, with defaults applied and an
// incarnation given (s.Incarnation is ignored).
func (c *Catalog) CreateStream(ctx context.Context, s Stream) (created bool, err error) {
	return One(c.CreateAll(ctx, []Definition{{Stream: &s}}))
}

// CreateCache makes a cache in an existing namespace.
func (c *Catalog) CreateCache(ctx context.Context, ca Cache) (created bool, err error) {
	return One(c.CreateAll(ctx, []Definition{{Cache: &ca}}))
}

func (c *Catalog) newIncarnation() uint64 {
	for {
		if v := c.random(); v != 0 {
			return v
		}
	}
}

type parent struct {
	object string
	key    string
}

func tenantParent(t string) parent { return parent{"tenant " + t, tenantKey(t)} }
func namespaceParent(t, ns string) parent {
	return parent{"namespace " + t + "/" + ns, namespaceKey(t, ns)}
}

// creation is one object to be made.
type creation struct {
	key   string
	value []byte
	same  func([]byte) error // judges a value that is there
}

// create writes the keys that are absent, in one transaction, if the parents exist; what
// says of what, for errors. created is false of an item whose key is there and the same.
// An unknown outcome is resolved by reading: our own value, incarnation included, tells
// our write from another's.
func (c *Catalog) create(ctx context.Context, what string, parents []parent, items ...creation) (created []bool, err error) {
	unknown := false
	fail := func(err error) error {
		if unknown && !errors.Is(err, ErrUnknownOutcome) {
			err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return fmt.Errorf("create %s: %w", what, err)
	}
	for range maxAttempts {
		var compares []Compare
		for _, p := range parents {
			e, err := c.store.Get(ctx, p.key)
			if errors.Is(err, ErrNotFound) {
				return nil, &NotFoundError{Object: p.object}
			}
			if err != nil {
				return nil, fail(err)
			}
			if deleting(e.Value) {
				return nil, &NotFoundError{Object: p.object}
			}
			compares = append(compares, Compare{Key: p.key, Version: e.Version})
		}
		var ops []Op
		created = make([]bool, len(items))
		ours := false
		for i, item := range items {
			e, err := c.store.Get(ctx, item.key)
			switch {
			case errors.Is(err, ErrNotFound):
				ops = append(ops, Put(item.key, item.value))
				created[i] = true
			case err != nil:
				return nil, fail(err)
			case unknown && string(e.Value) == string(item.value):
				created[i], ours = true, true
			default:
				if err := item.same(e.Value); err != nil {
					return nil, &ItemError{Index: i, Err: err}
				}
			}
			compares = append(compares, Compare{Key: item.key, Version: e.Version})
		}
		if ours || len(ops) == 0 {
			// One of ours is there, so all were: what is absent was removed since.
			return created, nil
		}
		_, err := c.store.Txn(ctx, compares, ops)
		switch {
		case err == nil:
			return created, nil
		case errors.Is(err, ErrUnknownOutcome) && ctx.Err() == nil:
			unknown = true
		case errors.Is(err, ErrConflict):
		default:
			return nil, fail(err)
		}
	}
	err = ErrConflict
	if unknown {
		err = ErrUnknownOutcome
	}
	return nil, fmt.Errorf("create %s: %d attempts lost: %w", what, maxAttempts, err)
}

func deleting(value []byte) bool {
	var v struct {
		Deleting bool `json:"deleting"`
	}
	return json.Unmarshal(value, &v) == nil && v.Deleting
}

func read[T any](ctx context.Context, c *Catalog, object, key string) (*T, Version, error) {
	e, err := c.store.Get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil, 0, &NotFoundError{Object: object}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", object, err)
	}
	v, err := decode[T](object, e.Value)
	return v, e.Version, err
}

// GetTenant reads a tenant. ErrNotFound when there is none.
func (c *Catalog) GetTenant(ctx context.Context, id string) (*Tenant, error) {
	t, _, err := read[Tenant](ctx, c, "tenant "+id, tenantKey(id))
	return t, err
}

// GetNamespace reads a namespace.
func (c *Catalog) GetNamespace(ctx context.Context, tenant, name string) (*Namespace, error) {
	n, _, err := read[Namespace](ctx, c, "namespace "+tenant+"/"+name, namespaceKey(tenant, name))
	return n, err
}

// GetStream reads a stream.
func (c *Catalog) GetStream(ctx context.Context, n Name) (*Stream, error) {
	s, _, err := read[Stream](ctx, c, "stream "+n.String(), streamKey(n))
	return s, err
}

// GetCache reads a cache.
func (c *Catalog) GetCache(ctx context.Context, n Name) (*Cache, error) {
	s, _, err := read[Cache](ctx, c, "cache "+n.String(), cacheKey(n))
	return s, err
}

// list is one page of objects below prefix after the name cursor; next is the cursor
// of the following page, empty on the last.
func list[T any](ctx context.Context, c *Catalog, object, prefix, cursor string, limit int) (items []T, next string, err error) {
	if limit == 0 {
		limit = DefaultListLimit
	}
	if limit < 1 || limit > MaxListLimit {
		return nil, "", &InvalidError{Object: object + " listing", Field: "limit", Detail: fmt.Sprintf("is %d, at least 1 and at most %d", limit, MaxListLimit)}
	}
	after := ""
	if cursor != "" {
		after = prefix + cursor
	}
	p, err := c.store.List(ctx, prefix, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("list %ss: %w", object, err)
	}
	for _, e := range p.Entries {
		v, err := decode[T](object, e.Value)
		if err != nil {
			return nil, "", err
		}
		items = append(items, *v)
	}
	if p.More && len(p.Entries) > 0 {
		next = strings.TrimPrefix(p.Entries[len(p.Entries)-1].Key, prefix)
	}
	return items, next, nil
}

// ListTenants is a page of tenants by id: cursor is the next of the page before, limit
// at most MaxListLimit, zero for DefaultListLimit.
func (c *Catalog) ListTenants(ctx context.Context, cursor string, limit int) (items []Tenant, next string, err error) {
	return list[Tenant](ctx, c, "tenant", tenantPrefix, cursor, limit)
}

// ListNamespaces is a page of a tenant's namespaces by name.
func (c *Catalog) ListNamespaces(ctx context.Context, tenant, cursor string, limit int) (items []Namespace, next string, err error) {
	return list[Namespace](ctx, c, "namespace", namespacePrefix+tenant+"/", cursor, limit)
}

// ListStreams is a page of a namespace's streams by name.
func (c *Catalog) ListStreams(ctx context.Context, tenant, namespace, cursor string, limit int) (items []Stream, next string, err error) {
	return list[Stream](ctx, c, "stream", namesBelow(streamPrefix, tenant, namespace), cursor, limit)
}

// ListCaches is a page of a namespace's caches by name.
func (c *Catalog) ListCaches(ctx context.Context, tenant, namespace, cursor string, limit int) (items []Cache, next string, err error) {
	return list[Cache](ctx, c, "cache", namesBelow(cachePrefix, tenant, namespace), cursor, limit)
}
