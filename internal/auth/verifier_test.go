package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// bench holds keys, a verifier on a clock of its own, and the count of checks.
type bench struct {
	keys   *Keys
	v      *Verifier
	now    time.Time
	checks int
}

func newBench(t *testing.T, cache int) *bench {
	t.Helper()
	b := &bench{keys: openKeys(t), now: time.Unix(1_800_000_000, 0)}
	_, err := b.keys.Ensure("t1")
	require.NoError(t, err)
	b.v = NewVerifier(VerifierOptions{Keys: b.keys, CacheTokens: cache,
		Clock: func() time.Time { return b.now }, OnVerify: func() { b.checks++ }})
	return b
}

func (b *bench) mint(t *testing.T, r MintRequest) string {
	t.Helper()
	r.Now = b.now
	if r.Tenant == "" {
		r.Tenant = "t1"
	}
	if r.Subject == "" {
		r.Subject = "alice"
	}
	if r.Permissions == nil {
		r.Permissions = []string{"stream.publish:stream:t1/*/*"}
	}
	token, err := b.keys.Mint(r)
	require.NoError(t, err)
	return token
}

func TestVerify(t *testing.T) {
	b := newBench(t, 0)
	p, err := b.v.Verify("t1", b.mint(t, MintRequest{TTL: time.Hour}))
	require.NoError(t, err)
	require.Equal(t, "alice", p.Subject)
	require.Equal(t, "t1", p.Tenant)
	require.Equal(t, b.now.Add(time.Hour), p.Expiry)
	require.True(t, p.Allows(StreamPublish, StreamObject("t1", "a", "b")))
}

func TestFortyAuthenticationsCostOneCheck(t *testing.T) {
	b := newBench(t, 0)
	token := b.mint(t, MintRequest{})
	for range 40 {
		_, err := b.v.Verify("t1", token)
		require.NoError(t, err)
	}
	require.Equal(t, 1, b.checks)
}

func TestVerifyRefuses(t *testing.T) {
	b := newBench(t, 0)
	signer, err := b.keys.Current("t1")
	require.NoError(t, err)
	_, err = b.keys.Ensure("t2")
	require.NoError(t, err)
	foreign, err := b.keys.Current("t2")
	require.NoError(t, err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	good := func() jwt.MapClaims {
		return jwt.MapClaims{"iss": TokenIssuer, "aud": AudienceBroker, "sub": "alice", "tid": "t1",
			"iat": b.now.Unix(), "exp": b.now.Add(time.Hour).Unix(), "perms": []string{"stream.publish:stream:t1/*/*"}}
	}
	with := func(name string, value any) jwt.MapClaims {
		c := good()
		if value == nil {
			delete(c, name)
		} else {
			c[name] = value
		}
		return c
	}
	sign := func(c jwt.MapClaims, kid any, method jwt.SigningMethod, key any) string {
		tok := jwt.NewWithClaims(method, c)
		if kid != nil {
			tok.Header["kid"] = kid
		}
		s, err := tok.SignedString(key)
		require.NoError(t, err)
		return s
	}
	eddsa := func(c jwt.MapClaims) string { return sign(c, signer.ID, jwt.SigningMethodEdDSA, signer.private) }

	for _, tc := range []struct{ name, tenant, token, reason string }{
		{"good", "t1", eddsa(good()), ""},
		{"audience in an array", "t1", eddsa(with("aud", []string{"x", AudienceBroker})), ""},
		{"no kid", "t1", sign(good(), nil, jwt.SigningMethodEdDSA, signer.private), ""},
		{"kid of another key", "t1", sign(good(), "other", jwt.SigningMethodEdDSA, signer.private), ""},
		{"kid that is no string", "t1", sign(good(), 7, jwt.SigningMethodEdDSA, signer.private), ""},
		{"no perms", "t1", eddsa(with("perms", nil)), ""},
		{"expired within the leeway", "t1", eddsa(with("exp", b.now.Add(-59*time.Second).Unix())), ""},
		{"not yet valid within the leeway", "t1", eddsa(with("nbf", b.now.Add(59*time.Second).Unix())), ""},
		{"expired", "t1", eddsa(with("exp", b.now.Add(-61*time.Second).Unix())), "expired"},
		{"not yet valid", "t1", eddsa(with("nbf", b.now.Add(61*time.Second).Unix())), "not valid yet"},
		{"no exp", "t1", eddsa(with("exp", nil)), "a required claim is missing"},
		{"wrong issuer", "t1", eddsa(with("iss", "someone")), "wrong issuer"},
		{"no issuer", "t1", eddsa(with("iss", nil)), "a required claim is missing"},
		{"api audience", "t1", eddsa(with("aud", AudienceAPI)), "meant for another audience"},
		{"no audience", "t1", eddsa(with("aud", nil)), "a required claim is missing"},
		{"other tenant in the token", "t1", eddsa(with("tid", "t2")), "issued for another tenant"},
		{"no tenant in the token", "t1", eddsa(with("tid", nil)), "issued for another tenant"},
		{"other tenant asked", "t2", eddsa(with("jti", "x")), "signature or algorithm not accepted"},
		{"unknown tenant asked", "t9", eddsa(good()), "no key of that tenant is known here"},
		{"key of another tenant", "t1", sign(good(), signer.ID, jwt.SigningMethodEdDSA, foreign.private), "signature or algorithm not accepted"},
		{"none", "t1", sign(good(), signer.ID, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType), "signature or algorithm not accepted"},
		{"ES256", "t1", sign(good(), signer.ID, jwt.SigningMethodES256, ec), "signature or algorithm not accepted"},
		{"HS256 with the public key", "t1", sign(good(), signer.ID, jwt.SigningMethodHS256, []byte(signer.Public().Key)), "signature or algorithm not accepted"},
		{"subject too long", "t1", eddsa(with("sub", strings.Repeat("a", 256))), "subject over 255 bytes"},
		{"empty", "t1", "", "malformed"},
		{"words", "t1", "a.b.c", "malformed"},
		{"too long", "t1", strings.Repeat("a", MaxTokenBytes+1), "too long"},
		{"cut", "t1", eddsa(good())[:80], "malformed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := b.v.Verify(tc.tenant, tc.token)
			if tc.reason == "" {
				require.NoError(t, err)
				require.Equal(t, "alice", p.Subject)
				return
			}
			require.ErrorIs(t, err, ErrToken)
			var te *TokenError
			require.ErrorAs(t, err, &te)
			require.Equal(t, tc.reason, te.Reason)
		})
	}
}

func TestEveryFlippedBitOfATokenIsRefused(t *testing.T) {
	b := newBench(t, -1)
	token := b.mint(t, MintRequest{})
	signature := strings.LastIndexByte(token, '.') + 1
	for i := range token {
		// The last character of a base64 part carries bits that count for nothing;
		// strict decoding refuses those too.
		for bit := range 7 {
			bad := []byte(token)
			bad[i] ^= 1 << bit
			_, err := b.v.Verify("t1", string(bad))
			require.ErrorIs(t, err, ErrToken, "byte %d bit %d (signature from %d)", i, bit, signature)
		}
	}
}

func TestCachedTokensAreStillChecked(t *testing.T) {
	b := newBench(t, 0)
	_, err := b.keys.Ensure("t2")
	require.NoError(t, err)
	token := b.mint(t, MintRequest{TTL: time.Minute})
	_, err = b.v.Verify("t1", token)
	require.NoError(t, err)

	_, err = b.v.Verify("t2", token)
	require.ErrorIs(t, err, ErrToken, "for another tenant")

	b.now = b.now.Add(time.Minute + 59*time.Second)
	_, err = b.v.Verify("t1", token)
	require.NoError(t, err)
	b.now = b.now.Add(2 * time.Second)
	_, err = b.v.Verify("t1", token)
	require.ErrorIs(t, err, ErrToken, "after its end")
	require.Equal(t, 1, b.checks)
}

func TestRemovedKeyEndsItsTokens(t *testing.T) {
	b := newBench(t, 0)
	old, err := b.keys.Current("t1")
	require.NoError(t, err)
	token := b.mint(t, MintRequest{})
	_, err = b.v.Verify("t1", token)
	require.NoError(t, err)

	id, err := b.keys.Stage("t1")
	require.NoError(t, err)
	require.NoError(t, b.keys.Activate("t1", id))
	_, err = b.v.Verify("t1", token)
	require.NoError(t, err, "the old key still verifies")
	require.NoError(t, b.keys.Remove("t1", old.ID))
	_, err = b.v.Verify("t1", token)
	require.ErrorIs(t, err, ErrToken)
	_, err = b.v.Verify("t1", b.mint(t, MintRequest{}))
	require.NoError(t, err)
}

func TestTokenCacheIsBounded(t *testing.T) {
	b := newBench(t, 64)
	hot := b.mint(t, MintRequest{Subject: "hot"})
	for i := range 1000 {
		_, err := b.v.Verify("t1", b.mint(t, MintRequest{Subject: fmt.Sprint("s", i)}))
		require.NoError(t, err)
		_, err = b.v.Verify("t1", hot)
		require.NoError(t, err)
		require.LessOrEqual(t, len(b.v.mu.newer)+len(b.v.mu.older), 64)
	}
	require.Equal(t, 1001, b.checks, "what is used stays")
}

func TestMintRefuses(t *testing.T) {
	b := newBench(t, 0)
	perms := []string{"stream.publish:stream:t1/a/b"}
	for name, r := range map[string]MintRequest{
		"unknown tenant":  {Tenant: "t9", Subject: "a", Permissions: perms},
		"no subject":      {Tenant: "t1", Permissions: perms},
		"long subject":    {Tenant: "t1", Subject: strings.Repeat("a", 256), Permissions: perms},
		"audience":        {Tenant: "t1", Subject: "a", Permissions: perms, Audience: "x"},
		"negative ttl":    {Tenant: "t1", Subject: "a", Permissions: perms, TTL: -1},
		"endless ttl":     {Tenant: "t1", Subject: "a", Permissions: perms, TTL: MaxTokenTTL + 1},
		"no permission":   {Tenant: "t1", Subject: "a"},
		"unknown action":  {Tenant: "t1", Subject: "a", Permissions: []string{"x:stream:t1/a/b"}},
		"foreign object":  {Tenant: "t1", Subject: "a", Permissions: []string{"stream.publish:stream:t2/a/b"}},
		"object in error": {Tenant: "t1", Subject: "a", Permissions: []string{"stream.publish:stream:t1/*/b"}},
	} {
		_, err := b.keys.Mint(r)
		require.Error(t, err, name)
	}
	all := AllPermissions("t1")
	_, err := b.keys.Mint(MintRequest{Tenant: "t1", Subject: "a", Permissions: all})
	require.NoError(t, err)
}
