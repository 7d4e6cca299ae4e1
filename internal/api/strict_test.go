package api

import (
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
		"{\"\u212aind\":1}":         "unknown field \"\u212aind\"",
		`{"a":1,"r":{"b":{"C":1}}}`: `unknown field "r.b.C"`,
	} {
		err := strictly([]byte(body))
		if want == "" {
			require.NoError(t, err, body)
			continue
		}
		require.ErrorContains(t, err, want, body)
	}
}
