package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain is a text of others for the terminal: as it is when all of it can be printed, else
// quoted as Go does, so that it stays on its line and moves no cursor. What begins with a
// quotation mark is quoted too: the two cannot be taken for each other.
func plain(s string) string {
	if !utf8.ValidString(s) || strings.HasPrefix(s, `"`) || strings.ContainsFunc(s, unprintable) {
		return strconv.Quote(s)
	}
	return s
}

func unprintable(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }

// firstBytes are the first bytes of a text, at most so many, and no half of a character more than
// the text has itself.
func firstBytes[T ~string | ~[]byte](s T, most int) T {
	if len(s) <= most {
		return s
	}
	for n := most; n > max(0, most-utf8.UTFMax); n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:most]
}

// harmless is an error's text for the terminal: names of others stand in it. Line breaks and
// tabs stay.
func harmless(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			_, n := utf8.DecodeRuneInString(s[i:])
			if n != 1 {
				b.WriteRune(r)
				continue
			}
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n', r == '\t', !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}
