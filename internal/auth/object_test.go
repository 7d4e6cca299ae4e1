package auth

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseObject(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Object // zero Kind: refused
	}{
		{"tenant:t1", TenantObject("t1")},
		{"tenant:*", Object{}},
		{"tenant:", Object{}},
		{"tenant:t1/x", Object{}},
		{"namespace:t1/pay", NamespaceObject("t1", "pay")},
		{"namespace:t1/*", NamespaceObject("t1", "*")},
		{"namespace:*/pay", Object{}},
		{"namespace:t1", Object{}},
		{"namespace:t1/a/b", Object{}},
		{"stream:t1/pay/orders", StreamObject("t1", "pay", "orders")},
		{"stream:t1/pay/*", StreamObject("t1", "pay", "*")},
		{"stream:t1/*/*", StreamObject("t1", "*", "*")},
		{"stream:t1/*/orders", Object{}},
		{"stream:*/pay/orders", Object{}},
		{"stream:t1/pay", Object{}},
		{"stream:t1/pay/orders/x", Object{}},
		{"stream:t1/pay/ord*", Object{}},
		{"stream:t1/pay/../x", Object{}},
		{"stream:t1//orders", Object{}},
		{"stream::t1/pay/orders", Object{}},
		{"cache:t1/pay/session", CacheObject("t1", "pay", "session")},
		{"cache:t1/*/*", CacheObject("t1", "*", "*")},
		{"cache:t1/pay/session/user:1", CacheKeyObject("t1", "pay", "session", "user:1")},
		{"cache:t1/pay/session/a/b/c", CacheKeyObject("t1", "pay", "session", "a/b/c")},
		{"cache:t1/pay/session/user:1*", CachePrefixObject("t1", "pay", "session", "user:1")},
		{"cache:t1/pay/session/a*b", CacheKeyObject("t1", "pay", "session", "a*b")},
		{"cache:t1/pay/session/*", Object{}},
		{"cache:t1/pay/session/", Object{}},
		{"cache:t1/pay/*/user", Object{}},
		{"cache:t1/*/*/user", Object{}},
		{"cache:t1/*/session", Object{}},
		{"group:t1/pay/orders/g", GroupObject("t1", "pay", "orders", "g")},
		{"group:t1/pay/orders/*", GroupObject("t1", "pay", "orders", "*")},
		{"group:t1/pay/*/*", GroupObject("t1", "pay", "*", "*")},
		{"group:t1/*/*/*", GroupObject("t1", "*", "*", "*")},
		{"group:t1/pay/*/g", Object{}},
		{"group:t1/pay/orders", Object{}},
		{"group:t1/pay/orders/g/h", Object{}},
		{"node:n1", Object{Kind: KindNode, Name: "n1"}},
		{"node:*", Object{}},
		{"cluster:*", ClusterObject()},
		{"cluster:", Object{}},
		{"cluster:x", Object{}},
		{"CLUSTER:*", Object{}},
		{"queue:t1/a/b", Object{}},
		{"", Object{}},
		{":", Object{}},
		{"stream", Object{}},
		{"stream:t1/pay/" + strings.Repeat("a", 129), Object{}},
		{"stream:t1/pay/a\x00b", Object{}},
		{"stream:t1/pay/\xff", Object{}},
	} {
		t.Run(tc.text, func(t *testing.T) {
			got, err := ParseObject(tc.text)
			if tc.want.Kind == 0 {
				var pe *PermissionError
				require.ErrorAs(t, err, &pe)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.text, got.String())
		})
	}
}

func TestParseGrant(t *testing.T) {
	for text, ok := range map[string]bool{
		"stream.publish:stream:t1/payments/orders":   true,
		"stream.publish:cache:t1/payments/orders":    false,
		"cache.read:cache:t1/payments/session/k*":    true,
		"cache.write:cache:t1/payments/session/k":    true,
		"cache.manage:cache:t1/payments/session/k":   false,
		"cache.manage:cache:t1/payments/session":     true,
		"group.consume:stream:t1/payments/orders":    true,
		"group.consume:group:t1/payments/orders/g":   true,
		"group.consume:cache:t1/payments/orders":     false,
		"node.view:cluster:*":                        true,
		"node.view:tenant:t1":                        false,
		"tenant.manage:tenant:t1":                    true,
		"ns.manage:namespace:t1/*":                   true,
		"token.delegate:tenant:t1":                   true,
		"stream.destroy:stream:t1/payments/orders":   false,
		"stream.publish":                             false,
		"stream.publish:stream:t1/payments/orders/x": false,
		"":  false,
		":": false,
	} {
		g, err := ParseGrant(text)
		require.Equal(t, ok, err == nil, "%q: %v", text, err)
		if ok {
			require.Equal(t, text, g.String())
		}
	}
}

// FuzzParseGrant: what parses is spelled one way only, and never reaches past its tenant.
func FuzzParseGrant(f *testing.F) {
	f.Add("stream.publish:stream:t1/payments/orders")
	f.Add("cache.read:cache:t1/payments/session/k*")
	f.Add("group.manage:group:t/a/*/*")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGrant(text)
		if err != nil {
			return
		}
		if g.String() != text {
			t.Fatalf("%q reads as %q", text, g)
		}
		foreign := g.Object
		foreign.Tenant += "x"
		if g.Object.Tenant != "" && g.Object.covers(foreign) {
			t.Fatalf("%q covers %q", text, foreign)
		}
	})
}
