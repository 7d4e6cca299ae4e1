package auth

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func openKeys(t *testing.T) *Keys {
	t.Helper()
	k, err := OpenKeys(filepath.Join(t.TempDir(), "keys"))
	require.NoError(t, err)
	return k
}

func TestKeysLifeOfAKey(t *testing.T) {
	k := openKeys(t)
	_, err := k.Current("t1")
	require.ErrorIs(t, err, ErrNoSigningKey)

	created, err := k.Ensure("t1")
	require.NoError(t, err)
	require.True(t, created)
	created, err = k.Ensure("t1")
	require.NoError(t, err)
	require.False(t, created)
	first, err := k.Current("t1")
	require.NoError(t, err)
	_, v1 := k.VerifyingKeys("t1")

	staged, err := k.Stage("t1")
	require.NoError(t, err)
	current, err := k.Current("t1")
	require.NoError(t, err)
	require.Equal(t, first.ID, current.ID, "a staged key does not sign")
	keys, v2 := k.VerifyingKeys("t1")
	require.Len(t, keys, 2)
	require.Equal(t, first.ID, keys[0].ID)
	require.NotEqual(t, v1, v2)

	require.ErrorIs(t, k.Remove("t1", first.ID), ErrCurrentKey)
	require.NoError(t, k.Activate("t1", staged))
	require.NoError(t, k.Remove("t1", first.ID))
	require.Error(t, k.Remove("t1", first.ID))
	require.ErrorIs(t, k.Activate("t1", first.ID), ErrNoSigningKey)

	// Another process sees the same.
	again, err := OpenKeys(k.dir)
	require.NoError(t, err)
	current, err = again.Current("t1")
	require.NoError(t, err)
	require.Equal(t, staged, current.ID)
	require.Equal(t, []string{"t1"}, again.Tenants())

	// And a change made by it is seen after a reload, not before.
	_, err = again.Ensure("t2")
	require.NoError(t, err)
	require.Equal(t, []string{"t1"}, k.Tenants())
	require.NoError(t, k.Reload())
	require.Equal(t, []string{"t1", "t2"}, k.Tenants())
	_, before := k.VerifyingKeys("t1")
	require.NoError(t, k.Reload())
	_, after := k.VerifyingKeys("t1")
	require.Equal(t, before, after, "reading the same keys again changes nothing")
}

func TestKeysRefuseNamesThatAreNoNames(t *testing.T) {
	k := openKeys(t)
	for _, name := range []string{"", ".", "..", "a/../b", "a\x00b", "\xff", "../x"} {
		_, err := k.Ensure(name)
		require.Error(t, err, "%q", name)
	}
	entries, err := os.ReadDir(filepath.Dir(k.dir))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing was made outside")
}

func TestKeyFilesArePrivate(t *testing.T) {
	k := openKeys(t)
	_, err := k.Ensure("t1")
	require.NoError(t, err)
	path, err := k.SigningKeyPath("t1")
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	loaded, err := LoadSigningKey(path)
	require.NoError(t, err)
	current, err := k.Current("t1")
	require.NoError(t, err)
	require.Equal(t, current.ID, loaded.ID)

	require.NoError(t, os.Chmod(path, 0o640))
	_, err = LoadSigningKey(path)
	require.ErrorContains(t, err, "chmod 600")
	require.Error(t, k.Reload())
	_, err = k.Current("t1")
	require.NoError(t, err, "a failed reload leaves the keys in use")
}

func TestKeysBound(t *testing.T) {
	k := openKeys(t)
	for range MaxKeysPerTenant {
		_, err := k.Stage("t1")
		require.NoError(t, err)
	}
	_, err := k.Stage("t1")
	require.ErrorContains(t, err, "remove one first")
}

func TestJWKS(t *testing.T) {
	k := openKeys(t)
	data, err := k.JWKS("t1")
	require.NoError(t, err)
	require.JSONEq(t, `{"keys":[]}`, string(data))

	_, err = k.Ensure("t1")
	require.NoError(t, err)
	_, err = k.Stage("t1")
	require.NoError(t, err)
	data, err = k.JWKS("t1")
	require.NoError(t, err)
	var set struct{ Keys []map[string]string }
	require.NoError(t, json.Unmarshal(data, &set))
	keys, _ := k.VerifyingKeys("t1")
	require.Len(t, set.Keys, 2)
	for i, j := range set.Keys {
		require.Equal(t, map[string]string{"kty": "OKP", "kid": keys[i].ID, "alg": "EdDSA", "use": "sig", "crv": "Ed25519",
			"x": base64.RawURLEncoding.EncodeToString(keys[i].Key)}, j)
	}
}

// The thumbprint of RFC 8037, appendix A.3.
func TestKeyIDIsTheThumbprint(t *testing.T) {
	x, err := base64.RawURLEncoding.DecodeString("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
	require.NoError(t, err)
	full, err := base64.RawURLEncoding.DecodeString("kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k")
	require.NoError(t, err)
	require.Equal(t, base64.RawURLEncoding.EncodeToString(full[:16]), keyID(x))
}
