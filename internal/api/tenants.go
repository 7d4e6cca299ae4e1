package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

// Tenant is a tenant as the API spells it in answers.
type Tenant struct {
	TenantID    string `json:"tenant_id"`
	DisplayName string `json:"display_name"`
	Quota       *Quota `json:"quota,omitempty"` // ours: absent where nothing of it is set
}

// Quota bounds what a tenant writes a second; null is the broker's own bound, 0 none.
type Quota struct {
	BytesPerSecond   *int64 `json:"bytes_per_second"`
	RecordsPerSecond *int64 `json:"records_per_second"`
}

// tenantBody is a create or a patch: every field may be missing.
type tenantBody struct {
	TenantID    string        `json:"tenant_id"`
	DisplayName maybe[string] `json:"display_name"`
	Quota       *quotaBody    `json:"quota"`
}

type quotaBody struct {
	BytesPerSecond   maybe[uint64] `json:"bytes_per_second"`
	RecordsPerSecond maybe[uint64] `json:"records_per_second"`
}

// fill puts what b gives into t.
func (b *tenantBody) fill(t *meta.Tenant) error {
	take(&t.DisplayName, b.DisplayName)
	if b.Quota == nil {
		return nil
	}
	for _, f := range []struct {
		name string
		from maybe[uint64]
		to   *int64
	}{
		{"quota.bytes_per_second", b.Quota.BytesPerSecond, &t.Quota.BytesPerSecond},
		{"quota.records_per_second", b.Quota.RecordsPerSecond, &t.Quota.RecordsPerSecond},
	} {
		switch {
		case !f.from.given:
		case f.from.value == nil:
			*f.to = 0
		case *f.from.value == 0:
			*f.to = meta.NoQuota
		case *f.from.value > meta.MaxQuota:
			return invalid("%s %d is over the most, %d", f.name, *f.from.value, int64(meta.MaxQuota))
		default:
			*f.to = int64(*f.from.value)
		}
	}
	return nil
}

type namespaceBody struct {
	TenantID    string `json:"tenant_id,omitempty"`
	Namespace   string `json:"namespace"`
	DisplayName string `json:"display_name"`
}

func viewTenant(t *meta.Tenant) Tenant {
	v := Tenant{TenantID: t.ID, DisplayName: t.DisplayName}
	if t.Quota != (meta.Quota{}) {
		v.Quota = &Quota{viewRate(t.Quota.BytesPerSecond), viewRate(t.Quota.RecordsPerSecond)}
	}
	return v
}

func viewRate(v int64) *int64 {
	switch v {
	case 0:
		return nil
	case meta.NoQuota:
		v = 0
	}
	return &v
}

func viewNamespace(n *meta.Namespace) namespaceBody {
	return namespaceBody{n.Tenant, n.Name, n.DisplayName}
}

func (q *request) manageTenants() error {
	return q.need(auth.TenantManage, auth.ClusterObject())
}

func listTenants(q *request) (answer, error) {
	if err := q.manageTenants(); err != nil {
		return answer{}, err
	}
	return list(q, func(cursor string, limit int) ([]meta.Tenant, string, error) {
		return q.Catalog.ListTenants(q.http.Context(), cursor, limit)
	}, func(*meta.Tenant) bool { return true }, viewTenant)
}

func createTenant(q *request) (answer, error) {
	if err := q.manageTenants(); err != nil {
		return answer{}, err
	}
	var b tenantBody
	if err := q.body(&b); err != nil {
		return answer{}, err
	}
	if err := wire.ValidName(b.TenantID); err != nil {
		return answer{}, invalid("tenant_id: %v", err)
	}
	t := meta.Tenant{ID: b.TenantID}
	if err := b.fill(&t); err != nil {
		return answer{}, err
	}
	created, err := q.Catalog.CreateTenant(q.http.Context(), t)
	if err != nil {
		return answer{}, err
	}
	if !created {
		return answer{}, conflict("already_exists", "tenant "+t.ID+" exists")
	}
	// A tenant that nobody can sign for would be of no use.
	if _, err := q.Keys.Ensure(t.ID); err != nil {
		err = fmt.Errorf("signing key of tenant %s: %w", t.ID, err)
		if left := q.Catalog.DeleteTenant(q.http.Context(), t.ID); left != nil {
			err = fmt.Errorf("tenant %s is left without one, remove it: %w", t.ID, errors.Join(err, left))
		}
		return answer{}, err
	}
	return answer{http.StatusCreated, viewTenant(&t)}, nil
}

func getTenant(q *request) (answer, error) {
	if err := q.manageTenants(); err != nil {
		return answer{}, err
	}
	t, err := q.Catalog.GetTenant(q.http.Context(), q.path("t"))
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewTenant(t)}, nil
}

func patchTenant(q *request) (answer, error) {
	if err := q.manageTenants(); err != nil {
		return answer{}, err
	}
	var b tenantBody
	if err := q.body(&b); err != nil {
		return answer{}, err
	}
	if err := q.sameTenant(b.TenantID); err != nil {
		return answer{}, err
	}
	t, err := q.Catalog.UpdateTenant(q.http.Context(), q.path("t"), b.fill)
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewTenant(t)}, nil
}

func deleteTenant(q *request) (answer, error) {
	if err := q.manageTenants(); err != nil {
		return answer{}, err
	}
	if _, err := q.Catalog.GetTenant(q.http.Context(), q.path("t")); err != nil {
		return answer{}, err
	}
	// Before the tenant: keys left behind would be those of whoever gets its name.
	if err := q.Keys.RemoveTenant(q.path("t")); err != nil {
		return answer{}, fmt.Errorf("keys of tenant %s: %w", q.path("t"), err)
	}
	if err := q.Catalog.DeleteTenant(q.http.Context(), q.path("t")); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusNoContent}, nil
}

func (q *request) manageNamespace(name string) error {
	return q.need(auth.NamespaceManage, auth.NamespaceObject(q.path("t"), name))
}

func listNamespaces(q *request) (answer, error) {
	t := q.path("t")
	return list(q, func(cursor string, limit int) ([]meta.Namespace, string, error) {
		return q.Catalog.ListNamespaces(q.http.Context(), t, cursor, limit)
	}, func(n *meta.Namespace) bool {
		return q.caller.Allows(auth.NamespaceManage, auth.NamespaceObject(t, n.Name))
	}, viewNamespace)
}

func createNamespace(q *request) (answer, error) {
	var b namespaceBody
	if err := q.body(&b); err != nil {
		return answer{}, err
	}
	if err := q.sameTenant(b.TenantID); err != nil {
		return answer{}, err
	}
	if err := wire.ValidName(b.Namespace); err != nil {
		return answer{}, invalid("namespace: %v", err)
	}
	if err := q.manageNamespace(b.Namespace); err != nil {
		return answer{}, err
	}
	n := meta.Namespace{Tenant: q.path("t"), Name: b.Namespace, DisplayName: b.DisplayName}
	created, err := q.Catalog.CreateNamespace(q.http.Context(), n)
	if err != nil {
		return answer{}, err
	}
	if !created {
		return answer{}, conflict("already_exists", "namespace "+n.Tenant+"/"+n.Name+" exists")
	}
	return answer{http.StatusCreated, viewNamespace(&n)}, nil
}

// sameTenant refuses a body that names another tenant than the path.
func (q *request) sameTenant(t string) error {
	if t != "" && t != q.path("t") {
		return invalid("tenant_id %q is not the tenant of the path", t)
	}
	return nil
}

func getNamespace(q *request) (answer, error) {
	if err := q.manageNamespace(q.path("ns")); err != nil {
		return answer{}, err
	}
	n, err := q.Catalog.GetNamespace(q.http.Context(), q.path("t"), q.path("ns"))
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, viewNamespace(n)}, nil
}

func deleteNamespace(q *request) (answer, error) {
	if err := q.manageNamespace(q.path("ns")); err != nil {
		return answer{}, err
	}
	if err := q.Catalog.DeleteNamespace(q.http.Context(), q.path("t"), q.path("ns")); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusNoContent}, nil
}
