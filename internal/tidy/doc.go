// Package tidy holds the rules of the source tree as tests: who may import whom,
// formatting, file sizes, words that have no place here, and that every test a
// document names exists. It has no code of its own.
package tidy
