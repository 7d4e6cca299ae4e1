// Package api is the broker's HTTP side: tenants, namespaces and streams under
// /v1, the public keys of tenants, health and metrics.
//
// It parses, checks the caller and calls the catalog; it keeps nothing of its own
// and starts no goroutine (the owner runs the http.Server). Health and metrics
// answer from the first moment; /v1 answers 503 until Open has given the server
// its catalog and keys, so that a long recovery is visible from outside.
//
// Errors are JSON objects with code and message. The credential is checked before
// existence: a request about an unknown tenant is 401, never 404. Every body is
// bounded, and a field that is not known is refused by name.
package api
