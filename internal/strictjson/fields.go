package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// MaxFields bounds the fields of one object: more than any body of ours has.
const MaxFields = 64

// FieldError is a field that a body should not have.
type FieldError struct {
	Field string // with where it is: "retention.age", "streams[3].shards"
	what  string // a format of Field
}

func (e *FieldError) Error() string { return fmt.Sprintf(e.what, e.Field) }

const (
	misspelt = "unknown field %q: fields are lower-case"
	twice    = "field %q is given twice"
	tooMany  = "field %q is one too many: an object has at most 64"
)

// place is an object or an array that is being read.
type place struct {
	object bool
	first  int // its first field in seen
	index  int // of the element that comes, in an array
}

// Fields refuses the first field that is given twice, is spelled as none of ours could be,
// or is one too many. raw is JSON that encoding/json has decoded: nothing else of it is
// looked at.
func Fields(raw []byte) error {
	var (
		roomAt   [8]place
		roomSeen [2 * MaxFields][]byte
		at       = roomAt[:0]
		seen     = roomSeen[:0] // fields of the objects that are being read, outermost first
		name     bool           // a string that comes is a field's name
	)
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case '{', '[':
			at = append(at, place{object: c == '{', first: len(seen)})
			name = c == '{'
		case '}', ']':
			seen, at = seen[:at[len(at)-1].first], at[:len(at)-1]
			name = false
		case ',':
			top := &at[len(at)-1]
			top.index++
			name = top.object
		case '"':
			end := closing(raw, i+1)
			if name {
				own := seen[at[len(at)-1].first:]
				field := raw[i+1 : end]
				if bytes.IndexByte(field, '\\') >= 0 {
					field = []byte(text(raw[i : end+1]))
				}
				what := ""
				switch {
				case !spelled(field):
					what = misspelt
				case has(own, field):
					what = twice
				case len(own) == MaxFields:
					what = tooMany
				}
				if what != "" {
					return &FieldError{within(at, seen) + beginning(text(raw[i:end+1])), what}
				}
				seen, name = append(seen, field), false
			}
			i = end
		}
	}
	return nil
}

// closing is where the string ends that goes on at i.
func closing(raw []byte, i int) int {
	for raw[i] != '"' {
		if raw[i] == '\\' {
			i++
		}
		i++
	}
	return i
}

func has(fields [][]byte, field []byte) bool {
	for _, f := range fields {
		if bytes.Equal(f, field) {
			return true
		}
	}
	return false
}

// spelled reports whether a name is one that a field of ours could have.
func spelled(name []byte) bool {
	for _, c := range name {
		if c-'a' >= 26 && c-'0' >= 10 && c != '_' {
			return false
		}
	}
	return len(name) > 0
}

// text is what a string of JSON says.
func text(quoted []byte) string {
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		s = string(quoted)
	}
	return s
}

// beginning is as much of a name as an error repeats.
func beginning(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return s
}

// within is where the fields of the innermost object are: "retention.", "streams[3].".
func within(at []place, seen [][]byte) string {
	var where []byte
	for i, p := range at[:len(at)-1] {
		if !p.object {
			where = append(append(append(where, '['), strconv.Itoa(p.index)...), ']')
			continue
		}
		if len(where) > 0 {
			where = append(where, '.')
		}
		where = append(where, seen[at[i+1].first-1]...)
	}
	if len(where) > 0 {
		where = append(where, '.')
	}
	return string(where)
}
