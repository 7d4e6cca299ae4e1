package wire

import (
	"fmt"
	"strconv"
)

// MaxNameBytes bounds the names of tenants, namespaces, streams and caches.
const MaxNameBytes = 128

// ValidName checks the name of a tenant, namespace, stream or cache: 1 to 128
// of the characters A-Z a-z 0-9 . _ -, the first a letter or digit. The error
// says what is wrong and is fit for the user who chose the name.
func ValidName(s string) error {
	if s == "" {
		return fmt.Errorf("name is empty: use 1 to %d of A-Z a-z 0-9 . _ -", MaxNameBytes)
	}
	if len(s) > MaxNameBytes {
		return fmt.Errorf("name of %d bytes is too long: at most %d", len(s), MaxNameBytes)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		alphanumeric := c-'a' < 26 || c-'A' < 26 || c-'0' < 10
		switch {
		case alphanumeric:
		case i == 0:
			return fmt.Errorf("name %s must begin with a letter or digit", strconv.QuoteToASCII(s))
		case c != '.' && c != '_' && c != '-':
			return fmt.Errorf("name %s has an unusable character at byte %d: use A-Z a-z 0-9 . _ -", strconv.QuoteToASCII(s), i)
		}
	}
	return nil
}
