package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// maxAnswer bounds an answer of the HTTP API, in bytes.
const maxAnswer = 64 << 20

// manager calls the HTTP API.
type manager struct {
	*identity
	client *http.Client
	base   *url.URL
	token  string
	// timeout bounds one request.
	timeout time.Duration
}

func (e *environment) manager() (*manager, error) {
	id, err := e.identity()
	if err != nil {
		return nil, err
	}
	if e.opts.timeout <= 0 {
		return nil, usagef("--timeout %v leaves no time for an answer", e.opts.timeout)
	}
	m := &manager{identity: id, timeout: e.opts.timeout}
	if m.client, m.base, err = id.httpClient(); err != nil {
		return nil, err
	}
	m.token, err = id.apiToken()
	return m, err
}

// statusError is an answer that is not 2xx.
type statusError struct {
	status  int
	code    string
	message string
}

func (e *statusError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("%d %s", e.status, http.StatusText(e.status))
	}
	return e.message
}

// call sends one request; in and out may be nil.
func (m *manager) call(ctx context.Context, method string, in, out any, path ...string) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	u := m.base.JoinPath(path...)
	return m.do(ctx, method, u, body, out)
}

func (m *manager) do(ctx context.Context, method string, u *url.URL, body io.Reader, out any) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	resp, err := m.send(ctx, method, u, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := m.answer(resp)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("answer of %s: %w", m.base.Host, err)
	}
	return nil
}

// send sends one request and gives its answer, which is 2xx and has to be closed. ctx
// bounds it.
func (m *manager) send(ctx context.Context, method string, u *url.URL, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+m.token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return nil, noAnswer(ctx, m.base.Host, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, err := m.answer(resp)
	if err != nil {
		return nil, err
	}
	e := &statusError{status: resp.StatusCode}
	var b struct{ Code, Message string }
	if json.Unmarshal(raw, &b) == nil {
		e.code, e.message = b.Code, b.Message
	}
	return nil, &exitError{statusExit(resp.StatusCode), e}
}

// noAnswer is the error of a request that nobody has answered, or that was interrupted.
func noAnswer(ctx context.Context, host string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return &exitError{exitUnreachable, notReached(fmt.Errorf("no answer from %s: %w", host, err), "controlplane-url")}
}

// answer reads a bounded answer.
func (m *manager) answer(resp *http.Response) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("answer of %s: %w", m.base.Host, err)}
	}
	return raw, nil
}

func statusExit(status int) int {
	switch {
	case status == http.StatusNotFound:
		return exitMissing
	case status == http.StatusInsufficientStorage:
		return exitRefused // as a publish that finds no room
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable:
		return exitUnreachable
	case status >= 500:
		return exitOther
	}
	return exitRefused
}

// listAll follows a listing to its end.
func listAll[T any](ctx context.Context, m *manager, path ...string) ([]T, error) {
	all := []T{}
	cursor := ""
	for {
		u := m.base.JoinPath(path...)
		q := url.Values{"limit": {strconv.Itoa(1000)}}
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		u.RawQuery = q.Encode()
		var page struct {
			Items      []T    `json:"items"`
			NextCursor string `json:"next_cursor"`
		}
		if err := m.do(ctx, http.MethodGet, u, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		if page.NextCursor == cursor {
			return nil, fmt.Errorf("the listing of %s does not advance", m.base.Host)
		}
		cursor = page.NextCursor
	}
}
