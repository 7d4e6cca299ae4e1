package strictjson

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A field that is given twice, or is spelled as encoding/json would take it all the same,
// is named with where it is; the same name in another object is another field.
func TestFieldsAreStrict(t *testing.T) {
	for body, want := range map[string]string{
		`null`: "", `{}`: "", `[]`: "", `"Stream"`: "", `[1,[2,{"a":1}]]`: "",
		`{"a":{"a":1},"b":[{"a":1},{"a":"A"}]}`:       "",
		`{"a":"A","b":"a"}`:                           "",
		`{"n":1e999,"m":18446744073709551615}`:        "",
		`{"a":1,"b":2,"a":3}`:                         `field "a" is given twice`,
		`{"a":{"b":1},"a":2}`:                         `field "a" is given twice`,
		`{"a":[],"a":[]}`:                             `field "a" is given twice`,
		`{"r":{"b":1,"c":{},"b":1}}`:                  `field "r.b" is given twice`,
		`{"s":[{"x":1},{"x":[1,{}],"y":2,"x":1}]}`:    `field "s[1].x" is given twice`,
		`{"s":[[0,{"x":1,"x":1}]]}`:                   `field "s[0][1].x" is given twice`,
		`{"s":[{"r":{"q":[1]}},{"r":{"q":1,"q":1}}]}`: `field "s[1].r.q" is given twice`,
		`{"":1}`:                    `unknown field ""`,
		`{"a b":1}`:                 `unknown field "a b"`,
		`{"s":[{"x":1},{"X":1}]}`:   `unknown field "s[1].X"`,
		`{"\u0061":1,"a":2}`:        `field "a" is given twice`,
		`{"a":"\"{,\\","a":1}`:      `field "a" is given twice`,
		"{\"\u212aind\":1}":         "unknown field \"\u212aind\"",
		`{"a":1,"r":{"b":{"C":1}}}`: `unknown field "r.b.C"`,
	} {
		err := Fields([]byte(body))
		if want == "" {
			require.NoError(t, err, body)
			continue
		}
		require.ErrorContains(t, err, want, body)
	}
}

// An object has so many fields and no more, however many stand around it, and an error
// repeats only the beginning of a name.
func TestFieldsAreBounded(t *testing.T) {
	object := func(n int) string {
		fields := make([]string, n)
		for i := range fields {
			fields[i] = fmt.Sprintf(`"f%d":{"f0":0}`, i)
		}
		return "{" + strings.Join(fields, ",") + "}"
	}
	require.NoError(t, Fields([]byte("["+object(MaxFields)+","+object(MaxFields)+"]")))
	require.EqualError(t, Fields([]byte(object(MaxFields+1))), `field "f64" is one too many: an object has at most 64`)
	err := Fields([]byte(`{"` + strings.Repeat("K", 5000) + `":1}`))
	require.ErrorContains(t, err, "KKK...")
	require.Less(t, len(err.Error()), 200)
}

// What decodes is read to its end without a panic, and its fields are found as a decoder
// finds them.
func FuzzFields(f *testing.F) {
	for _, s := range []string{`{"a":[{"b":"}\\\""},1,null],"c":{}}`, `"a"`, `[[],{},"",{"a":{"A":1}}]`, ` { "a" : 1 , "a" : 2 } `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var v any
		if json.Unmarshal(raw, &v) != nil {
			return
		}
		err := Fields(raw)
		var fields func(v any) int
		fields = func(v any) (n int) {
			switch v := v.(type) {
			case map[string]any:
				n = len(v)
				for name, of := range v {
					if err == nil && !spelled([]byte(name)) {
						t.Fatalf("%q is taken in %q", name, raw)
					}
					n += fields(of)
				}
			case []any:
				for _, of := range v {
					n += fields(of)
				}
			}
			return n
		}
		written := fields(v)
		// What is taken has no field twice: as many are written as are kept.
		if err == nil && written != names(raw) {
			t.Fatalf("%d fields kept of %q, %d written", written, raw, names(raw))
		}
	})
}

// names counts the fields that are written in a body.
func names(raw []byte) (n int) {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	var inObject, wantsName []bool
	value := func() {
		if k := len(inObject); k > 0 && inObject[k-1] {
			wantsName[k-1] = true
		}
	}
	for {
		token, err := dec.Token()
		if err != nil {
			return n
		}
		k := len(inObject)
		switch token {
		case json.Delim('{'), json.Delim('['):
			inObject, wantsName = append(inObject, token == json.Delim('{')), append(wantsName, true)
		case json.Delim('}'), json.Delim(']'):
			inObject, wantsName = inObject[:k-1], wantsName[:k-1]
			value()
		default:
			if k > 0 && inObject[k-1] && wantsName[k-1] {
				n++
				wantsName[k-1] = false
				continue
			}
			value()
		}
	}
}
