package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// place is an object or an array of a body that is being read.
type place struct {
	fields map[string]bool // seen of an object; nil of an array
	field  string          // whose value comes or came last
	index  int             // of the element that comes, in an array
}

// strictly refuses what encoding/json takes without a word: a field that is given twice,
// of which it takes the last, and one that is spelled otherwise, which it takes for the
// one that folds to the same letters. All our fields are lower-case ASCII. raw is one JSON
// value that has been decoded, so that its depth is bounded.
func strictly(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var at []place
	value := func() { // one begins, or is there
		if n := len(at); n > 0 && at[n-1].fields == nil {
			at[n-1].index++
		} else if n > 0 {
			at[n-1].field = ""
		}
	}
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		n := len(at)
		name, isString := token.(string)
		switch {
		case token == json.Delim('{'), token == json.Delim('['):
			p := place{}
			if token == json.Delim('{') {
				p.fields = map[string]bool{}
			}
			at = append(at, p)
		case token == json.Delim('}'), token == json.Delim(']'):
			at = at[:n-1]
			value()
		case isString && n > 0 && at[n-1].fields != nil && at[n-1].field == "":
			top := &at[n-1]
			if !spelled(name) {
				return invalid("unknown field %q: fields are lower-case", within(at[:n-1])+name)
			}
			if top.fields[name] {
				return invalid("field %q is given twice", within(at[:n-1])+name)
			}
			top.fields[name] = true
			top.field = name
		default:
			value()
		}
	}
}

// spelled reports whether a name is one that a field of ours could have.
func spelled(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c-'a' >= 26 && c-'0' >= 10 && c != '_' {
			return false
		}
	}
	return name != ""
}

// within is where the fields of the innermost object are: "retention.", "streams[3].".
func within(at []place) string {
	var where string
	for _, p := range at {
		switch {
		case p.fields == nil:
			where += "[" + strconv.Itoa(p.index) + "]"
		case where != "":
			where += "." + p.field
		default:
			where = p.field
		}
	}
	if where != "" {
		where += "."
	}
	return where
}
