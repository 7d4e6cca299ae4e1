// Package tidy holds the rules of the source tree as tests: who may import whom,
// formatting, file sizes, words that have no place here, and that every test a
// document names exists. Its code finds the files and the tests that documents
// name; the command in cited asks whether those ran and passed.
package tidy
