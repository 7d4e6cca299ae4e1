package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// ErrToken is what every refused token is (errors.Is).
var ErrToken = errors.New("token refused")

// TokenError says why a token is refused, in words that may be shown to its bearer.
type TokenError struct {
	// Reason is one of a fixed set of short texts, fit for a metric label.
	Reason string
	// Err is the cause, where there is one.
	Err error
}

func (e *TokenError) Error() string { return "token refused: " + e.Reason }

// Is makes every TokenError an [ErrToken].
func (e *TokenError) Is(target error) bool { return target == ErrToken }

func (e *TokenError) Unwrap() error { return e.Err }

// KeySource gives the keys whose signatures count for a tenant, the likeliest first,
// and a number that changes when any of them do. It must not block for long: it is
// asked on every authentication.
type KeySource interface {
	VerifyingKeys(tenant string) (keys []PublicKey, version uint64)
}

// DefaultCacheTokens is how many verified tokens a [Verifier] remembers if it is not told.
const DefaultCacheTokens = 4096

// VerifierOptions configure a [Verifier].
type VerifierOptions struct {
	// Keys is required.
	Keys KeySource
	// Audience is what aud must hold; [AudienceBroker] when empty.
	Audience string
	// CacheTokens is how many verified tokens are remembered; [DefaultCacheTokens] when zero, none
	// when negative.
	CacheTokens int
	// Clock is time.Now when nil.
	Clock func() time.Time
	// OnVerify is called for each signature check made, when set. It must not block.
	OnVerify func()
}

// Verifier checks tokens. It is safe for concurrent use.
type Verifier struct {
	keys     KeySource
	clock    func() time.Time
	onVerify func()
	parser   *jwt.Parser

	// half is the size at which the newer half of the cache becomes the older one:
	// two maps give a bounded cache that keeps what is used, without a list.
	half int
	mu   struct {
		sync.Mutex
		version      uint64
		newer, older map[tokenDigest]*Principal
	}
}

type tokenDigest [sha256.Size]byte

// NewVerifier makes a verifier.
func NewVerifier(o VerifierOptions) *Verifier {
	if o.Audience == "" {
		o.Audience = AudienceBroker
	}
	if o.CacheTokens == 0 {
		o.CacheTokens = DefaultCacheTokens
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	v := &Verifier{keys: o.Keys, clock: o.Clock, onVerify: o.OnVerify, half: max(o.CacheTokens/2, 0)}
	if o.CacheTokens > 0 {
		v.half = max(v.half, 1)
	}
	v.parser = jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithIssuer(TokenIssuer), jwt.WithAudience(o.Audience), jwt.WithExpirationRequired(),
		jwt.WithLeeway(tokenClockLeeway), jwt.WithTimeFunc(o.Clock), jwt.WithStrictDecoding(),
	)
	v.mu.newer = make(map[tokenDigest]*Principal)
	return v
}

// Verify returns who bears the token, which must be one of tenant's. A token seen
// before costs a hash. The error is a [*TokenError].
func (v *Verifier) Verify(tenant, token string) (*Principal, error) {
	if len(token) > MaxTokenBytes {
		return nil, &TokenError{Reason: "too long"}
	}
	keys, version := v.keys.VerifyingKeys(tenant)
	if len(keys) == 0 {
		return nil, &TokenError{Reason: "no key of that tenant is known here"}
	}
	digest := sha256.Sum256([]byte(token))
	if p := v.remembered(digest, version); p != nil {
		if p.Tenant != tenant {
			return nil, &TokenError{Reason: "issued for another tenant"}
		}
		if v.clock().Before(p.Expiry.Add(tokenClockLeeway)) {
			return p, nil
		}
		return nil, &TokenError{Reason: "expired"}
	}
	p, err := v.verify(tenant, token, keys)
	if err != nil {
		return nil, err
	}
	v.remember(digest, version, p)
	return p, nil
}

func (v *Verifier) verify(tenant, token string, keys []PublicKey) (*Principal, error) {
	if v.onVerify != nil {
		v.onVerify()
	}
	var c claims
	_, err := v.parser.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		set := jwt.VerificationKeySet{Keys: make([]jwt.VerificationKey, 0, len(keys))}
		kid, _ := t.Header["kid"].(string)
		for _, k := range keys {
			if k.ID == kid {
				set.Keys = append(set.Keys, k.Key)
			}
		}
		for _, k := range keys {
			if k.ID != kid {
				set.Keys = append(set.Keys, k.Key)
			}
		}
		return set, nil
	})
	if err != nil {
		return nil, &TokenError{Reason: tokenReason(err), Err: err}
	}
	if c.Tenant != tenant {
		return nil, &TokenError{Reason: "issued for another tenant"}
	}
	if len(c.Subject) > maxSubjectBytes {
		return nil, &TokenError{Reason: fmt.Sprintf("subject over %d bytes", maxSubjectBytes)}
	}
	return NewPrincipal(c.Subject, c.Tenant, c.Permissions, c.ExpiresAt.Time), nil
}

func tokenReason(err error) string {
	for _, r := range []struct {
		is     error
		reason string
	}{
		{jwt.ErrTokenMalformed, "malformed"},
		{jwt.ErrTokenSignatureInvalid, "signature or algorithm not accepted"},
		{jwt.ErrTokenExpired, "expired"},
		{jwt.ErrTokenNotValidYet, "not valid yet"},
		{jwt.ErrTokenInvalidIssuer, "wrong issuer"},
		{jwt.ErrTokenInvalidAudience, "meant for another audience"},
		{jwt.ErrTokenRequiredClaimMissing, "a required claim is missing"},
	} {
		if errors.Is(err, r.is) {
			return r.reason
		}
	}
	return "not verifiable"
}

// remembered looks the token up. Everything is forgotten when the keys change.
func (v *Verifier) remembered(d tokenDigest, version uint64) *Principal {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.version != version {
		v.mu.version = version
		clear(v.mu.newer)
		v.mu.older = nil
		return nil
	}
	if p := v.mu.newer[d]; p != nil {
		return p
	}
	p := v.mu.older[d]
	if p != nil {
		v.insert(d, p)
	}
	return p
}

func (v *Verifier) remember(d tokenDigest, version uint64, p *Principal) {
	if v.half == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.version == version {
		v.insert(d, p)
	}
}

// insert needs the lock.
func (v *Verifier) insert(d tokenDigest, p *Principal) {
	if len(v.mu.newer) >= v.half {
		v.mu.older, v.mu.newer = v.mu.newer, make(map[tokenDigest]*Principal)
	}
	v.mu.newer[d] = p
}
