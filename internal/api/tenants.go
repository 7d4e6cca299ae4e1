package api

import (
	"net/http"

	"github.com/felixlog/felix/internal/auth"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/wire"
)

type tenantBody struct {
	TenantID    string `json:"tenant_id"`
	DisplayName string `json:"display_name"`
}

type namespaceBody struct {
	TenantID    string `json:"tenant_id,omitempty"`
	Namespace   string `json:"namespace"`
	DisplayName string `json:"display_name"`
}

func viewTenant(t *meta.Tenant) tenantBody { return tenantBody{t.ID, t.DisplayName} }

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
	t := meta.Tenant{ID: b.TenantID, DisplayName: b.DisplayName}
	created, err := q.Catalog.CreateTenant(q.http.Context(), t)
	if err != nil {
		return answer{}, err
	}
	if !created {
		return answer{}, conflict("already_exists", "tenant "+t.ID+" exists")
	}
	// A tenant that nobody can sign for would be of no use. A failure here leaves a
	// tenant without keys, which deleting and creating it again mends.
	if _, err := q.Keys.Ensure(t.ID); err != nil {
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

func deleteTenant(q *request) (answer, error) {
	if err := q.manageTenants(); err != nil {
		return answer{}, err
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
