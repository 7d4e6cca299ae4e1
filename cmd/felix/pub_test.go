package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of an input that ended in a refusal it is said what became of each of its records that was
// sent, and the log holds as many as were acknowledged.
func TestPubSaysWhatWasWritten(t *testing.T) {
	s := newShell(t)
	s.serve()
	s.ok("stream", "create", "orders", "--durable", "--max-record-bytes", "64")
	input := "one\ntwo\n" + strings.Repeat("x", 65) + "\nfour\n"
	_, errs := s.feed(input, "pub", "orders")
	require.Equal(t, exitRefused, s.exit)
	require.Contains(t, errs, "limit_exceeded")
	require.Contains(t, errs, "of the first 3 records of the input 2 were acknowledged, 1 were not written and of 0 it is not known; none after them was sent")
	require.Equal(t, "2\n", s.ok("pub", "orders", "end"))

	_, errs = s.feed(input, "pub", "orders", "--ack", "none")
	require.Equal(t, exitRefused, s.exit)
	// Records that leave in one frame with the large one are refused with it.
	m := regexp.MustCompile(`of the first (\d) records of the input (\d) were acknowledged, (\d) were not written and of 0 it is not known`).FindStringSubmatch(errs)
	require.NotNil(t, m, errs)
	var n [4]int
	for i := 1; i < 4; i++ {
		var err error
		n[i], err = strconv.Atoi(m[i])
		require.NoError(t, err)
	}
	require.Equal(t, n[1], n[2]+n[3])
	require.Positive(t, n[3])
	require.Equal(t, strconv.Itoa(3+n[2])+"\n", s.ok("pub", "orders", "end"))

	_, errs = s.felix("pub", "orders", strings.Repeat("x", 65))
	require.NotContains(t, errs, "of the first", "of one record the refusal says it")
}
