package auth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Action is something a principal may be allowed to do.
type Action string

// The actions. A token may carry others; they grant nothing.
const (
	RBACView             Action = "rbac.view"
	RBACPolicyManage     Action = "rbac.policy.manage"
	RBACAssignmentManage Action = "rbac.assignment.manage"
	TenantManage         Action = "tenant.manage"
	NamespaceManage      Action = "ns.manage"
	StreamManage         Action = "stream.manage"
	CacheManage          Action = "cache.manage"
	StreamPublish        Action = "stream.publish"
	StreamSubscribe      Action = "stream.subscribe"
	CacheRead            Action = "cache.read"
	CacheWrite           Action = "cache.write"
	GroupConsume         Action = "group.consume"
	GroupManage          Action = "group.manage"
	NodeView             Action = "node.view"
	NodeManage           Action = "node.manage"
	TokenDelegate        Action = "token.delegate"
)

// actionKinds lists the kinds of object each action can be granted on.
var actionKinds = map[Action][]Kind{
	RBACView:             {KindTenant, KindNamespace},
	RBACPolicyManage:     {KindTenant, KindNamespace},
	RBACAssignmentManage: {KindTenant, KindNamespace},
	TenantManage:         {KindTenant, KindCluster},
	NamespaceManage:      {KindNamespace},
	StreamManage:         {KindStream},
	CacheManage:          {KindCache},
	StreamPublish:        {KindStream},
	StreamSubscribe:      {KindStream},
	CacheRead:            {KindCache},
	CacheWrite:           {KindCache},
	GroupConsume:         {KindStream, KindGroup},
	GroupManage:          {KindStream, KindGroup},
	NodeView:             {KindNode, KindCluster},
	NodeManage:           {KindNode, KindCluster},
	TokenDelegate:        {KindTenant},
}

// impliedBy names, for an action, the one that grants it inside the broker.
var impliedBy = map[Action]Action{
	GroupConsume: StreamSubscribe,
	GroupManage:  StreamManage,
}

// PermissionError is a permission or object that cannot be read.
type PermissionError struct {
	// What is "permission" or "object".
	What string
	// Text is what was given.
	Text string
	// Detail says what is wrong with it.
	Detail string
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("%s %s %s", e.What, quote(e.Text), e.Detail)
}

func objectError(text, detail string) error {
	return &PermissionError{What: "object", Text: text, Detail: detail}
}

// quote bounds what a message repeats of its input.
func quote(s string) string {
	const most = 160
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// Grant is one permission: an action on an object.
type Grant struct {
	Action Action
	Object Object
}

// String returns the grant as tokens carry it.
func (g Grant) String() string { return string(g.Action) + ":" + g.Object.String() }

// ParseGrant reads "action:object", split at the first colon. It refuses unknown
// actions and objects the action cannot have, so it is the check for what is written
// into a token; [NewPrincipal] ignores such entries instead. The error is a
// [*PermissionError].
func ParseGrant(s string) (Grant, error) {
	action, rest, ok := strings.Cut(s, ":")
	if !ok {
		return Grant{}, &PermissionError{What: "permission", Text: s, Detail: "has no object: write it as action:object"}
	}
	kinds, known := actionKinds[Action(action)]
	if !known {
		return Grant{}, &PermissionError{What: "permission", Text: s, Detail: "has an unknown action"}
	}
	o, err := ParseObject(rest)
	if err != nil {
		return Grant{}, err
	}
	if !slices.Contains(kinds, o.Kind) {
		return Grant{}, &PermissionError{What: "permission", Text: s,
			Detail: fmt.Sprintf("cannot be granted on a %s", o.Kind)}
	}
	if o.HasKey && Action(action) != CacheRead && Action(action) != CacheWrite {
		return Grant{}, &PermissionError{What: "permission", Text: s, Detail: "names a key, which only cache.read and cache.write can"}
	}
	return Grant{Action: Action(action), Object: o}, nil
}

// expand appends g and what it stands for to dst: managing a tenant or a namespace
// means managing and using what lies inside it.
func expand(dst []Grant, g Grant) []Grant {
	dst = append(dst, g)
	var namespace string
	switch g.Action {
	case TenantManage:
		if g.Object.Kind != KindTenant {
			return dst
		}
		namespace = wildcard
		dst = append(dst, Grant{NamespaceManage, NamespaceObject(g.Object.Tenant, wildcard)})
	case NamespaceManage:
		namespace = g.Object.Namespace
	default:
		return dst
	}
	for _, a := range []Action{StreamManage, StreamPublish, StreamSubscribe} {
		dst = append(dst, Grant{a, StreamObject(g.Object.Tenant, namespace, wildcard)})
	}
	for _, a := range []Action{CacheManage, CacheRead, CacheWrite} {
		dst = append(dst, Grant{a, CacheObject(g.Object.Tenant, namespace, wildcard)})
	}
	return dst
}
