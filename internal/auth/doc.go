// Package auth decides who a client is and what it may do, and holds what a
// broker needs to be believed: signing keys and TLS certificates.
//
// It owns three things.
//
//   - Tokens. [Keys] is a directory of Ed25519 keys, one folder a tenant, one key
//     current and any number verifying; it mints Felix tokens and publishes a JWKS
//     document. [Verifier] turns a token into a [Principal], remembering verified
//     tokens in a bounded cache so that a client that authenticates forty streams
//     in a row costs one signature check.
//   - Permissions. [Grant], [Object] and [Principal.Allows] are the rules:
//     what an action is, what an object may look like, which grant covers which
//     object.
//   - Certificates. [EnsureCertificates] makes a private authority and a server
//     certificate on first start; [Certificate] serves a pair and swaps it without a
//     restart; [ServerTLS] is the listener's configuration.
//
// It does not talk to an identity provider, keep roles or policies, or know about
// sessions: the server package maps its errors to answers.
//
// Goroutines: none. Reload methods are called by the owner, on its own timer.
//
// Errors: a refused token is a [*TokenError] (errors.Is [ErrToken]); a malformed
// permission or object is a [*PermissionError]; a key or certificate that cannot be
// used names its file and what to do.
//
// Invariants:
//
//  1. A token is accepted only if an Ed25519 key of the very tenant named by the
//     client verifies it; no other algorithm is ever tried.
//  2. A permission never reaches another tenant than the token's.
//  3. Widening is impossible: an unknown action, or an object its action cannot have,
//     grants nothing.
//  4. Private keys are written with mode 0600, and read only with it.
package auth
