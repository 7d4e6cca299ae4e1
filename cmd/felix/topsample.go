package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxMetrics bounds the metrics of a broker as they are read, in bytes.
const maxMetrics = 64 << 20

// brokerWatch asks a broker for what it says of itself: /metrics and /ready.
type brokerWatch struct {
	client *http.Client
	base   *url.URL
	token  string // sent if there is one; the broker itself asks for none
}

func (e *environment) brokerWatch() (*brokerWatch, error) {
	id, err := e.identity()
	if err != nil {
		return nil, err
	}
	if e.opts.timeout <= 0 {
		return nil, usagef("--timeout %v leaves no time for an answer", e.opts.timeout)
	}
	w := &brokerWatch{}
	if w.client, w.base, err = id.httpClient(); err != nil {
		return nil, err
	}
	if token, err := id.apiToken(); err == nil {
		w.token = token
	}
	return w, nil
}

// brokerSample is what a broker said at one moment.
type brokerSample struct {
	at      time.Time
	started float64 // seconds since 1970, of the process
	ready   readySample
	series  map[string][]*model.Sample // by name
}

type readySample struct {
	Status  string `json:"status"`
	Reasons []struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	} `json:"reasons"`
}

// sample asks once.
func (w *brokerWatch) sample(ctx context.Context) (*brokerSample, error) {
	s := &brokerSample{series: map[string][]*model.Sample{}}
	if err := w.get(ctx, "metrics", http.StatusOK, func(body io.Reader) error {
		s.at = time.Now()
		return s.read(body)
	}); err != nil {
		return nil, err
	}
	if s.value("felix_build_info") == 0 {
		return nil, fmt.Errorf("%s/metrics is not that of a felix broker: it has no felix_build_info", w.base)
	}
	s.started = s.value("process_start_time_seconds")
	// Not ready is an answer too.
	err := w.get(ctx, "ready", http.StatusServiceUnavailable, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&s.ready)
	})
	return s, err
}

// get reads a page; other is a status that is taken beside 200.
func (w *brokerWatch) get(ctx context.Context, page string, other int, read func(io.Reader) error) error {
	u := w.base.JoinPath(page)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return noAnswer(ctx, w.base.Host, err)
	}
	defer resp.Body.Close()
	switch status := resp.StatusCode; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return &exitError{exitRefused, fmt.Errorf("GET %s: %s: give a token that may read it with --controlplane-token", u, resp.Status)}
	case status != http.StatusOK && status != other:
		return &exitError{statusExit(status), fmt.Errorf("GET %s: %s", u, resp.Status)}
	}
	if err := read(io.LimitReader(resp.Body, maxMetrics)); err != nil {
		return fmt.Errorf("read %s: %w", u, err)
	}
	return nil
}

// read takes in the text of /metrics.
func (s *brokerSample) read(text io.Reader) error {
	d := expfmt.SampleDecoder{Dec: expfmt.NewDecoder(text, expfmt.NewFormat(expfmt.TypeTextPlain)), Opts: &expfmt.DecodeOptions{}}
	for {
		var v model.Vector
		err := d.Decode(&v)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, one := range v {
			name := string(one.Metric[model.MetricNameLabel])
			s.series[name] = append(s.series[name], one)
		}
	}
}

// value is the sum of a name's series that have the label values given, as pairs.
func (s *brokerSample) value(name string, where ...string) float64 {
	sum := 0.0
	for _, v := range s.by(name, nil, where...) {
		sum += v
	}
	return sum
}

// topObject names a stream, a cache or a group: tenant, namespace, name, group.
type topObject [4]string

// by sums a name's series that have the label values given, as pairs, for each object
// that the labels make up.
func (s *brokerSample) by(name string, labels []string, where ...string) map[topObject]float64 {
	sums := map[topObject]float64{}
series:
	for _, one := range s.series[name] {
		for i := 0; i+1 < len(where); i += 2 {
			if string(one.Metric[model.LabelName(where[i])]) != where[i+1] {
				continue series
			}
		}
		var o topObject
		for i, l := range labels {
			o[i] = string(one.Metric[model.LabelName(l)])
		}
		sums[o] += float64(one.Value)
	}
	return sums
}
