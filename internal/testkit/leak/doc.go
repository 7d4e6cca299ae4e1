// Package leak looks for goroutines that a package's tests have left behind.
package leak
