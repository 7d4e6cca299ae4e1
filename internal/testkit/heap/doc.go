// Package heap counts allocations for tests.
package heap
