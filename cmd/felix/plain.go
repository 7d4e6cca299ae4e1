package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
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

// payloads gives payloads of others as they are printed: on a terminal plain, elsewhere, and
// where raw is asked for, byte for byte.
func (e *environment) payloads(raw bool) func([]byte) []byte {
	if _, tty := e.terminal(); tty == nil || raw {
		return func(b []byte) []byte { return b }
	}
	return func(b []byte) []byte { return []byte(plain(string(b))) }
}

// rawUsage is the help of a --raw that lets payloads reach a terminal.
const rawUsage = "payloads byte for byte on a terminal too, where those that cannot be printed are quoted"

// steersTerminal says whether a terminal may take r for more than a character. What is below
// it in ASCII is escaped in JSON anyway.
func steersTerminal(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }

// appendJSONEscaped appends JSON with the characters escaped that may steer a terminal: it
// says the same, and can be looked at.
func appendJSONEscaped(out, raw []byte) []byte {
	for len(raw) > 0 {
		r, n := utf8.DecodeRune(raw)
		switch {
		case r < 0x7f || !steersTerminal(r):
			out = append(out, raw[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		raw = raw[n:]
	}
	return out
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
		case r == '\n', r == '\t', !steersTerminal(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}
