package client

import "context"

// TokenSource gives the token to authenticate a new connection with. It is
// asked for each one, and once more after a refusal, so that it may hand out a
// fresh token; it should keep a good one and return it at once. Calls may come
// from several goroutines.
type TokenSource func(ctx context.Context) (string, error)

// StaticToken always returns the same token.
func StaticToken(token string) TokenSource {
	return func(context.Context) (string, error) { return token, nil }
}
