package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/felixlog/felix/wire"
)

// What a Felix token must say.
const (
	TokenIssuer      = "felix-auth"
	AudienceBroker   = "felix-broker"
	AudienceAPI      = "felix-controlplane"
	DefaultTokenTTL  = 15 * time.Minute
	MaxTokenTTL      = 366 * 24 * time.Hour
	MaxTokenBytes    = 48 << 10
	tokenClockLeeway = 60 * time.Second
	maxSubjectBytes  = 255
)

// MintRequest says what a token shall hold.
type MintRequest struct {
	Tenant  string
	Subject string
	// Permissions are "action:object" strings; each is checked, and must belong to
	// Tenant or to the cluster.
	Permissions []string
	// Audience is [AudienceBroker] when empty.
	Audience string
	// TTL is [DefaultTokenTTL] when zero, and at most [MaxTokenTTL].
	TTL time.Duration
	// Now is the time of issue; the wall clock when zero.
	Now time.Time
}

type claims struct {
	jwt.RegisteredClaims
	Tenant      string   `json:"tid"`
	Permissions []string `json:"perms"`
}

// AllPermissions is what an administrator of the tenant holds: everything in it,
// and the view of the cluster.
func AllPermissions(tenant string) []string {
	return []string{
		string(TenantManage) + ":" + TenantObject(tenant).String(),
		string(NodeView) + ":" + ClusterObject().String(),
	}
}

// Mint signs a token with the tenant's current key.
func (k *Keys) Mint(r MintRequest) (string, error) {
	s, err := k.Current(r.Tenant)
	if err != nil {
		return "", err
	}
	return s.Mint(r)
}

// Mint signs a token. A permission that could never be used is refused with a
// [*PermissionError].
func (k *SigningKey) Mint(r MintRequest) (string, error) {
	if err := wire.ValidName(r.Tenant); err != nil {
		return "", fmt.Errorf("mint token: tenant: %w", err)
	}
	if r.Subject == "" || len(r.Subject) > maxSubjectBytes {
		return "", fmt.Errorf("mint token: subject of %d bytes: it takes 1 to %d", len(r.Subject), maxSubjectBytes)
	}
	if r.Audience == "" {
		r.Audience = AudienceBroker
	}
	if r.Audience != AudienceBroker && r.Audience != AudienceAPI {
		return "", fmt.Errorf("mint token: audience %s: it is %s or %s", quote(r.Audience), AudienceBroker, AudienceAPI)
	}
	if r.TTL == 0 {
		r.TTL = DefaultTokenTTL
	}
	if r.TTL < time.Second || r.TTL > MaxTokenTTL {
		return "", fmt.Errorf("mint token: lifetime %v: it is between 1s and %v", r.TTL, MaxTokenTTL)
	}
	if len(r.Permissions) == 0 {
		return "", errors.New("mint token: no permission given, so the token could do nothing")
	}
	for _, p := range r.Permissions {
		g, err := ParseGrant(p)
		if err != nil {
			return "", fmt.Errorf("mint token: %w", err)
		}
		if g.Object.Kind != KindCluster && g.Object.Kind != KindNode && g.Object.Tenant != r.Tenant {
			return "", fmt.Errorf("mint token: %w", &PermissionError{What: "permission", Text: p,
				Detail: "belongs to another tenant than " + quote(r.Tenant)})
		}
	}
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: TokenIssuer, Subject: r.Subject, Audience: jwt.ClaimStrings{r.Audience},
			IssuedAt: jwt.NewNumericDate(r.Now), ExpiresAt: jwt.NewNumericDate(r.Now.Add(r.TTL)),
		},
		Tenant: r.Tenant, Permissions: r.Permissions,
	})
	t.Header["kid"] = k.ID
	token, err := t.SignedString(k.private)
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	if len(token) > MaxTokenBytes {
		return "", fmt.Errorf("mint token: %d bytes, of at most %d: name fewer permissions", len(token), MaxTokenBytes)
	}
	return token, nil
}
