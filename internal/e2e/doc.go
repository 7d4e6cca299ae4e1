// Package e2e has the tests of whole brokers: real processes on real disks,
// driven by the public client. It holds no code of the product.
package e2e
