package auth

import (
	"slices"
	"time"
)

// Principal is a verified caller. It is immutable and may be shared.
type Principal struct {
	// Subject is the token's sub: the name reported as the publisher of a record.
	Subject string
	// Tenant is the token's tid. Nothing outside it is ever allowed, but for the
	// cluster and its nodes.
	Tenant string
	// Expiry is the token's exp. It is looked at when a stream authenticates only.
	Expiry time.Time

	grants []Grant
}

// NewPrincipal builds a principal from the permission strings of a token. Entries
// that cannot be read, name an unknown action, or belong to another tenant are left
// out.
func NewPrincipal(subject, tenant string, permissions []string, expiry time.Time) *Principal {
	var grants []Grant
	for _, s := range permissions {
		g, err := ParseGrant(s)
		if err != nil {
			continue
		}
		if g.Object.Kind != KindCluster && g.Object.Kind != KindNode && g.Object.Tenant != tenant {
			continue
		}
		grants = expand(grants, g)
	}
	// A verifier remembers thousands: no room that is not used.
	return &Principal{Subject: subject, Tenant: tenant, Expiry: expiry, grants: slices.Clone(grants)}
}

// Grants returns a copy of what the principal may do, expansions included.
func (p *Principal) Grants() []Grant { return append([]Grant(nil), p.grants...) }

// Allows reports whether the principal may do action to object, which must be exact
// but for a key prefix. A group is allowed by a grant on the group or, unless the
// principal holds any group grant of the action that could match a group of that
// stream, by one on its stream.
func (p *Principal) Allows(action Action, object Object) bool {
	if object.Kind != KindCluster && object.Kind != KindNode && object.Tenant != p.Tenant {
		return false
	}
	if object.Kind == KindGroup {
		return p.allowsGroup(action, object)
	}
	// A grant on a stream reaches groups of it through allowsGroup alone.
	for i := range p.grants {
		if g := &p.grants[i]; grantsAction(g.Action, action) && g.Object.covers(object) {
			return true
		}
	}
	return false
}

func (p *Principal) allowsGroup(action Action, group Object) bool {
	stream := StreamObject(group.Tenant, group.Namespace, group.Name)
	throughStream, restricted := false, false
	for i := range p.grants {
		g := &p.grants[i]
		if !grantsAction(g.Action, action) {
			continue
		}
		if g.Object.Kind == KindGroup {
			if g.Object.covers(group) {
				return true
			}
			restricted = restricted || g.Object.mayCoverGroupOf(stream)
			continue
		}
		throughStream = throughStream || g.Object.covers(stream)
	}
	return throughStream && !restricted
}

func grantsAction(held, wanted Action) bool {
	return held == wanted || impliedBy[wanted] == held
}
