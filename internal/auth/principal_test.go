package auth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/testkit/heap"
)

func principal(perms ...string) *Principal {
	return NewPrincipal("alice", "t1", perms, time.Now().Add(time.Hour))
}

func TestAllows(t *testing.T) {
	orders := StreamObject("t1", "pay", "orders")
	session := CacheObject("t1", "pay", "session")
	key := func(k string) Object { return CacheKeyObject("t1", "pay", "session", k) }
	prefix := func(k string) Object { return CachePrefixObject("t1", "pay", "session", k) }
	group := func(s, g string) Object { return GroupObject("t1", "pay", s, g) }

	for _, tc := range []struct {
		name   string
		perms  []string
		action Action
		object Object
		want   bool
	}{
		{"exact stream", []string{"stream.publish:stream:t1/pay/orders"}, StreamPublish, orders, true},
		{"other action", []string{"stream.publish:stream:t1/pay/orders"}, StreamSubscribe, orders, false},
		{"other stream", []string{"stream.publish:stream:t1/pay/orders"}, StreamPublish, StreamObject("t1", "pay", "order"), false},
		{"name is no prefix", []string{"stream.publish:stream:t1/pay/orders"}, StreamPublish, StreamObject("t1", "pay", "orders2"), false},
		{"namespace wildcard", []string{"stream.publish:stream:t1/pay/*"}, StreamPublish, orders, true},
		{"other namespace", []string{"stream.publish:stream:t1/pay/*"}, StreamPublish, StreamObject("t1", "log", "orders"), false},
		{"tenant wildcard", []string{"stream.publish:stream:t1/*/*"}, StreamPublish, orders, true},
		{"other tenant asked", []string{"stream.publish:stream:t1/*/*"}, StreamPublish, StreamObject("t2", "pay", "orders"), false},
		{"other tenant granted", []string{"stream.publish:stream:t2/*/*"}, StreamPublish, StreamObject("t2", "pay", "orders"), false},
		{"unknown action ignored", []string{"stream.fly:stream:t1/*/*", "stream.publish:stream:t1/*/*"}, StreamPublish, orders, true},
		{"malformed ignored", []string{"stream.publish:stream:t1/*/orders"}, StreamPublish, orders, false},
		{"nothing", nil, StreamPublish, orders, false},

		{"cache grant covers keys", []string{"cache.read:cache:t1/pay/session"}, CacheRead, key("a"), true},
		{"cache grant covers prefix", []string{"cache.read:cache:t1/pay/session"}, CacheRead, prefix("a"), true},
		{"cache grant covers cache", []string{"cache.read:cache:t1/pay/session"}, CacheRead, session, true},
		{"key grant", []string{"cache.read:cache:t1/pay/session/a"}, CacheRead, key("a"), true},
		{"key grant, other key", []string{"cache.read:cache:t1/pay/session/a"}, CacheRead, key("ab"), false},
		{"key grant, prefix watch", []string{"cache.read:cache:t1/pay/session/a"}, CacheRead, prefix("a"), false},
		{"key grant, whole cache", []string{"cache.read:cache:t1/pay/session/a"}, CacheRead, session, false},
		{"prefix grant", []string{"cache.read:cache:t1/pay/session/user:1*"}, CacheRead, key("user:10"), true},
		{"prefix grant, itself", []string{"cache.read:cache:t1/pay/session/user:1*"}, CacheRead, key("user:1"), true},
		{"prefix grant, other", []string{"cache.read:cache:t1/pay/session/user:1*"}, CacheRead, key("user:2"), false},
		{"prefix grant, longer watch", []string{"cache.read:cache:t1/pay/session/p*"}, CacheRead, prefix("pq"), true},
		{"prefix grant, shorter watch", []string{"cache.read:cache:t1/pay/session/pq*"}, CacheRead, prefix("p"), false},
		{"prefix grant, whole cache", []string{"cache.read:cache:t1/pay/session/p*"}, CacheRead, prefix(""), false},
		{"empty key under prefix", []string{"cache.read:cache:t1/pay/session/p*"}, CacheRead, key(""), false},
		{"key grant is no stream grant", []string{"cache.read:cache:t1/pay/session"}, CacheRead, StreamObject("t1", "pay", "session"), false},

		{"subscribe implies consume", []string{"stream.subscribe:stream:t1/pay/orders"}, GroupConsume, group("orders", "g"), true},
		{"subscribe does not imply manage", []string{"stream.subscribe:stream:t1/pay/orders"}, GroupManage, group("orders", "g"), false},
		{"manage implies group manage", []string{"stream.manage:stream:t1/pay/*"}, GroupManage, group("orders", "g"), true},
		{"manage does not imply consume", []string{"stream.manage:stream:t1/pay/*"}, GroupConsume, group("orders", "g"), false},
		{"consume on stream", []string{"group.consume:stream:t1/pay/orders"}, GroupConsume, group("orders", "g"), true},
		{"consume on stream is no subscribe", []string{"group.consume:stream:t1/pay/orders"}, StreamSubscribe, orders, false},
		{"consume on group", []string{"group.consume:group:t1/pay/orders/g"}, GroupConsume, group("orders", "g"), true},
		{"consume on other group", []string{"group.consume:group:t1/pay/orders/g"}, GroupConsume, group("orders", "h"), false},
		{"group wildcard", []string{"group.consume:group:t1/pay/*/*"}, GroupConsume, group("orders", "h"), true},
		{"group grant narrows the stream grant", []string{"stream.subscribe:stream:t1/pay/orders", "group.consume:group:t1/pay/orders/g"}, GroupConsume, group("orders", "h"), false},
		{"and still grants its own", []string{"stream.subscribe:stream:t1/pay/orders", "group.consume:group:t1/pay/orders/g"}, GroupConsume, group("orders", "g"), true},
		{"and not subscribing", []string{"stream.subscribe:stream:t1/pay/orders", "group.consume:group:t1/pay/orders/g"}, StreamSubscribe, orders, true},
		{"group grant on another stream narrows nothing", []string{"stream.subscribe:stream:t1/pay/*", "group.consume:group:t1/pay/bills/g"}, GroupConsume, group("orders", "h"), true},
		{"group grant of another action narrows nothing", []string{"stream.subscribe:stream:t1/pay/*", "group.manage:group:t1/pay/orders/g"}, GroupConsume, group("orders", "h"), true},

		{"cluster", []string{"node.view:cluster:*"}, NodeView, ClusterObject(), true},
		{"cluster is not a node", []string{"node.view:node:n1"}, NodeView, ClusterObject(), false},
		{"node", []string{"node.view:node:n1"}, NodeView, Object{Kind: KindNode, Name: "n1"}, true},

		{"tenant manager publishes", []string{"tenant.manage:tenant:t1"}, StreamPublish, orders, true},
		{"tenant manager reads caches", []string{"tenant.manage:tenant:t1"}, CacheRead, key("x"), true},
		{"tenant manager manages namespaces", []string{"tenant.manage:tenant:t1"}, NamespaceManage, NamespaceObject("t1", "pay"), true},
		{"tenant manager consumes", []string{"tenant.manage:tenant:t1"}, GroupConsume, group("orders", "g"), true},
		{"tenant manager sees no cluster", []string{"tenant.manage:tenant:t1"}, NodeView, ClusterObject(), false},
		{"foreign tenant manager", []string{"tenant.manage:tenant:t2"}, StreamPublish, orders, false},
		{"namespace manager inside", []string{"ns.manage:namespace:t1/pay"}, StreamPublish, orders, true},
		{"namespace manager outside", []string{"ns.manage:namespace:t1/pay"}, StreamPublish, StreamObject("t1", "log", "x"), false},
		{"all namespaces manager", []string{"ns.manage:namespace:t1/*"}, CacheWrite, session, true},
		{"namespace manager is no tenant manager", []string{"ns.manage:namespace:t1/*"}, TenantManage, TenantObject("t1"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, principal(tc.perms...).Allows(tc.action, tc.object))
		})
	}
}

func TestAllowsCostsNoAllocation(t *testing.T) {
	p := principal("stream.publish:stream:t1/pay/orders")
	require.Zero(t, heap.Allocs(100, func() {
		if !p.Allows(StreamPublish, StreamObject("t1", "pay", "orders")) {
			t.Error("refused")
		}
	}))
}
