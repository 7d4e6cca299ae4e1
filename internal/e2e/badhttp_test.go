package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/internal/auth"
)

// rawHTTP sends a request as it is, and gives the status and the code of the answer.
func (p *process) rawHTTP(t *testing.T, method, path, token, body string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", p.HTTP)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: felix\r\nConnection: close\r\nContent-Length: %d\r\n", method, path, len(body))
	if token != "" {
		head += "Authorization: Bearer " + token + "\r\n"
	}
	// The broker need not read a body to the end that it refuses.
	if _, err := io.WriteString(conn, head+"\r\n"+body); err != nil {
		t.Log(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	var answer struct{ Code string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Log(err)
	}
	return resp.StatusCode, answer.Code
}

// Bodies, paths and callers that are refused on the HTTP port: each has its status,
// disturbs nobody, costs no memory and makes nothing. What is said of each is in the tests
// of package api.
func TestBadHTTPInput(t *testing.T) {
	p := newProcess(t, "periodic")
	b := p.bystander("quiet")
	t.Cleanup(func() { b.end(t) })
	all := p.token(t, auth.AudienceAPI)
	const streams = "/v1/tenants/default/namespaces/default/streams"
	long := strings.Repeat("a", 10<<10)
	files := func() (names []string) {
		require.NoError(t, filepath.WalkDir(p.Dir, func(name string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				names = append(names, name)
			}
			return err
		}))
		return names
	}
	before := files()
	for name, c := range map[string]struct {
		method, path, token, body string
		status                    int
		code                      string
	}{
		"no body":              {"POST", streams, all, ``, 400, "invalid_request"},
		"half a body":          {"POST", streams, all, `{"stream":`, 400, "invalid_request"},
		"not JSON":             {"POST", streams, all, long, 400, "invalid_request"},
		"deep nesting":         {"POST", streams, all, strings.Repeat("[", 500<<10), 400, "invalid_request"},
		"unknown field":        {"POST", streams, all, `{"stream":"a","shard":1}`, 400, "invalid_request"},
		"a million shards":     {"POST", streams, all, `{"stream":"a","shards":1000000}`, 400, "invalid_request"},
		"2^32 shards":          {"POST", streams, all, `{"stream":"a","shards":4294967296}`, 400, "invalid_request"},
		"retention 0":          {"POST", streams, all, `{"stream":"a","durable":true,"retention":{"max_age_seconds":0}}`, 400, "invalid_request"},
		"exclude each other":   {"POST", streams, all, `{"stream":"a","durable":true,"overflow":"drop_old"}`, 400, "invalid_request"},
		"no name":              {"POST", streams, all, `{"stream":""}`, 400, "invalid_request"},
		"name ..":              {"POST", streams, all, `{"stream":"..","durable":true}`, 400, "invalid_request"},
		"name a/../b":          {"POST", streams, all, `{"stream":"a/../b","durable":true}`, 400, "invalid_request"},
		"name with NUL":        {"POST", streams, all, `{"stream":"a\u0000b","durable":true}`, 400, "invalid_request"},
		"name twice":           {"POST", streams, all, `{"stream":"a","stream":"b"}`, 400, "invalid_request"},
		"name spelled twice":   {"POST", streams, all, `{"stream":"a","Stream":"b"}`, 400, "invalid_request"},
		"name of 10 KiB":       {"POST", streams, all, `{"stream":"` + long + `","durable":true}`, 400, "invalid_request"},
		"name not UTF-8":       {"POST", streams, all, "{\"stream\":\"a\xff\",\"durable\":true}", 400, "invalid_request"},
		"body over the limit":  {"POST", streams, all, `{"stream":"a","region":"` + strings.Repeat("x", 8<<20) + `"}`, 413, "limit_exceeded"},
		"path ..":              {"GET", streams + "/..", all, "", 400, "invalid_request"},
		"path %2e%2e":          {"GET", streams + "/%2e%2e", all, "", 400, "invalid_request"},
		"path with a slash":    {"GET", streams + "/a%2Fb", all, "", 400, "invalid_request"},
		"path with NUL":        {"GET", streams + "/a%00b", all, "", 400, "invalid_request"},
		"path of 10 KiB":       {"GET", streams + "/" + long, all, "", 400, "invalid_request"},
		"path not UTF-8":       {"GET", "/v1/tenants/default/namespaces/%ff/streams", all, "", 400, "invalid_request"},
		"method":               {"PUT", streams, all, "{}", 405, "method_not_allowed"},
		"no token":             {"GET", streams, "", "", 401, "unauthenticated"},
		"garbage for a token":  {"GET", streams, "x.y.z", "", 401, "unauthenticated"},
		"a huge token":         {"GET", streams, strings.Repeat("x", 60<<10), "", 401, "unauthenticated"},
		"a broker's token":     {"GET", streams, p.token(t, auth.AudienceBroker), "", 401, "unauthenticated"},
		"another tenant":       {"GET", "/v1/tenants/other/namespaces", all, "", 401, "unauthenticated"},
		"without a permission": {"GET", "/v1/tenants", all, "", 403, "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			p.undisturbed(t, b, 8, func() {
				status, code := p.rawHTTP(t, c.method, c.path, c.token, c.body)
				require.Equal(t, c.status, status)
				require.Equal(t, c.code, code)
			})
		})
	}
	require.Equal(t, before, files(), "something was made")
}
