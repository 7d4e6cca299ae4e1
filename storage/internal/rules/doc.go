// Package rules names the safety rules of the log one by one, so that a test can take
// one away and see that something breaks. All hold unless a test says otherwise; no
// product code changes them.
package rules
