package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/storage/vfs"
	"github.com/felixlog/felix/wire"
)

// The bounds of pages and polls are the operator's.
func TestAnswersAreBoundedAsSet(t *testing.T) {
	r := start(t, func(o *Options) {
		l := &o.Config.Limits
		l.ReadPageBytes, l.PollBytes, l.PollRecords = 700, 1000, 5
	})
	r.createStream(`{"stream":"large","durable":true,"kind":"Queue"}`)
	r.createStream(`{"stream":"small","durable":true,"kind":"Queue"}`)
	c := r.dial()
	for i := range 10 {
		_, err := c.Publish(t.Context(), "large", make([]byte, 300))
		require.NoError(t, err)
		_, err = c.Publish(t.Context(), "small", fmt.Append(nil, i))
		require.NoError(t, err)
	}
	page, err := c.Read(t.Context(), "large", 0, 0)
	require.NoError(t, err)
	require.Len(t, page.Records, 2, "700 bytes of 300 each")
	messages, err := c.Group("large", "g").Poll(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 3, "1,000 bytes of 300 each")
	messages, err = c.Group("small", "g").Poll(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 5, "records")
}

// What is set of pages and polls is brought within what a frame carries: the broker's own,
// and that of a client which is not set otherwise.
func TestPagesAreWithinTheFrame(t *testing.T) {
	for frame, most := range map[int64]int64{2 << 20: config.MostRecordBytes(2 << 20), 128 << 20: config.MostRecordBytes(wire.DefaultMaxFrame)} {
		o := testOptions(t)
		l := &o.Config.Limits
		l.FrameBytes, l.ReadPageBytes, l.PollBytes = frame, 64<<20, 64<<20
		p, err := planOf(&o.Config, vfs.OS())
		require.NoError(t, err)
		require.EqualValues(t, most, p.broker.ReadPageBytes)
		require.EqualValues(t, most, p.broker.PollBytes)
		require.Less(t, most, min(frame, wire.DefaultMaxFrame)*3/4)
	}
}

// A page or a poll is never more than a frame can carry, with all that it says of its
// records. The client ends the connection when one is.
func TestPagesFitTheFrame(t *testing.T) {
	const frame, n = 128 << 10, 1000
	r := start(t, func(o *Options) {
		o.Config.Limits.FrameBytes, o.Config.Storage.MaxRecordBytes = frame, config.MostRecordBytes(frame)
	})
	r.createStream(`{"stream":"jobs","durable":true,"kind":"Queue","store_publisher":true}`)
	c := r.dial(client.WithMaxFrame(frame))
	batch := make([][]byte, n)
	for i := range batch {
		batch[i] = fmt.Appendf(nil, "%045d", i)
	}
	_, err := c.PublishIf(t.Context(), "jobs", 0, batch)
	require.NoError(t, err)
	g := c.Group("jobs", "g")
	polls := 0
	for got := 0; got < n; polls++ {
		messages, err := g.Poll(t.Context(), 0, n)
		require.NoError(t, err)
		require.NotEmpty(t, messages)
		for _, m := range messages {
			require.EqualValues(t, got, m.Offset)
			require.EqualValues(t, 1, m.Attempts, "what did not fit was not delivered")
			got++
		}
	}
	require.Greater(t, polls, 1)
	for at := uint64(0); at < n; {
		page, err := c.Read(t.Context(), "jobs", 0, at)
		require.NoError(t, err)
		require.NotEmpty(t, page.Records)
		for _, rec := range page.Records {
			require.Equal(t, at, rec.Offset)
			at++
		}
		require.Equal(t, at, page.Next)
	}
}

// Nor is a page of dead letters, which travels in base64 twice.
func TestDeadLettersFitTheFrame(t *testing.T) {
	const frame, n = 128 << 10, 5
	r := start(t, func(o *Options) {
		o.Config.Limits.FrameBytes, o.Config.Storage.MaxRecordBytes = frame, config.MostRecordBytes(frame)
		o.Config.Groups.MaxAttempts = 1
	})
	r.createStream(`{"stream":"jobs","durable":true,"kind":"Queue"}`)
	c := r.dial(client.WithMaxFrame(frame))
	g := c.Group("jobs", "g")
	for range n {
		_, err := c.Publish(t.Context(), "jobs", make([]byte, 20<<10))
		require.NoError(t, err)
		messages, err := g.Poll(t.Context(), 0, 1)
		require.NoError(t, err)
		require.Len(t, messages, 1)
		require.NoError(t, g.Nack(t.Context(), messages[0]))
	}
	from, pages := uint64(0), 0
	for more := true; more; pages++ {
		var letters []client.DeadLetter
		var err error
		letters, more, err = g.DeadLetters(t.Context(), 0, from)
		require.NoError(t, err)
		require.NotEmpty(t, letters)
		for _, l := range letters {
			require.Equal(t, from, l.Offset)
			from++
		}
	}
	require.EqualValues(t, n, from)
	require.Greater(t, pages, 1)
}

// A dead letter of any size is listed: one that no answer holds with its beginning, and says
// so; those behind it are on the next page.
func TestADeadLetterOfAnySizeIsListed(t *testing.T) {
	most := config.MostRecordBytes(config.Defaults().Limits.FrameBytes)
	require.Greater(t, most, int64(10<<20))
	r := start(t, func(o *Options) {
		o.Config.Storage.MaxRecordBytes = most
		o.Config.Groups.MaxAttempts = 1
	})
	r.createStream(fmt.Sprintf(`{"stream":"jobs","durable":true,"kind":"Queue","max_record_bytes":%d}`, most))
	c := r.dial()
	g := c.Group("jobs", "g")
	large := bytes.Repeat([]byte("large"), int(most)/5)
	var want []byte
	for _, payload := range [][]byte{large, []byte("small"), large[:9<<20], []byte("last")} {
		_, err := c.Publish(t.Context(), "jobs", payload)
		require.NoError(t, err)
		messages, err := g.Poll(t.Context(), 0, 1)
		require.NoError(t, err)
		require.Len(t, messages, 1)
		require.NoError(t, g.Nack(t.Context(), messages[0]))
		want = append(want, payload...)
	}
	var got []client.DeadLetter
	for from, more := uint64(0), true; more; from = got[len(got)-1].Offset + 1 {
		var page []client.DeadLetter
		var err error
		page, more, err = g.DeadLetters(t.Context(), 0, from)
		require.NoError(t, err)
		require.NotEmpty(t, page)
		got = append(got, page...)
	}
	require.Len(t, got, 4)
	at := 0
	for i, l := range got {
		require.EqualValues(t, i, l.Offset)
		whole := want[at : at+l.Size]
		at += l.Size
		require.Equal(t, l.Cut, len(l.Payload) < l.Size)
		require.True(t, bytes.Equal(whole[:len(l.Payload)], l.Payload), "letter %d is not what was published", i)
	}
	require.Equal(t, len(want), at)
	require.True(t, got[0].Cut)
	require.Greater(t, len(got[0].Payload), 8<<20, "all that fits is there")
	require.False(t, got[1].Cut || got[3].Cut)
}

// However long a poll asks to wait, it is answered in the time that is set.
func TestAPollWaitsAsLongAsIsSet(t *testing.T) {
	r := start(t, func(o *Options) { o.Config.Limits.PollWait = time.Millisecond })
	r.createStream(`{"stream":"jobs","durable":true,"kind":"Queue"}`)
	// Sooner than the default is over.
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	messages, err := r.dial().Group("jobs", "g").Poll(ctx, 0, 1, client.WithWait(time.Hour))
	require.NoError(t, err)
	require.Empty(t, messages)
}

// Groups that nobody configures are made as the broker is set; those that are there, and
// those that are configured, keep what they have.
func TestGroupsAreMadeAsSet(t *testing.T) {
	r := start(t, nil)
	r.createStream(`{"stream":"jobs","durable":true,"kind":"Queue"}`)
	c := r.dial()
	for i := range 10 {
		_, err := c.Publish(t.Context(), "jobs", fmt.Append(nil, i))
		require.NoError(t, err)
	}
	messages, err := c.Group("jobs", "before").Poll(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 10)
	require.Zero(t, r.metric("felix_stream_polls_cut_total", `stream="jobs"`))
	require.NoError(t, c.Close())
	r.stop()

	second := start(t, func(o *Options) {
		*o = r.options
		g := &o.Config.Groups
		g.Visibility, g.MaxAttempts, g.Backoff, g.BackoffMax, g.MaxInFlight = time.Hour, 1, time.Minute, 2*time.Minute, 3
	})
	second.awaitReady()
	c = second.dial()
	g := c.Group("jobs", "new")
	messages, err = g.Poll(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, messages, 3, "max_in_flight")
	require.Equal(t, 1.0, second.metric("felix_stream_polls_cut_total", `stream="jobs"`))
	require.NoError(t, g.Nack(t.Context(), messages[0]))
	info, err := g.Describe(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Dead, "after one delivery")
	require.Equal(t, client.GroupConfig{Visibility: time.Hour, MaxAttempts: 1, Backoff: time.Minute, BackoffMax: 2 * time.Minute, MaxInFlight: 3}, info.Config)

	require.NoError(t, c.Group("jobs", "own").Configure(t.Context(), 0, client.GroupConfig{MaxInFlight: 5}))
	info, err = c.Group("jobs", "own").Describe(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, client.GroupConfig{MaxInFlight: 5}, info.Config)
	info, err = c.Group("jobs", "before").Describe(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, info.Config)
}

// Retention waits for the groups of a queue up to the bound that is set.
func TestQueuesHoldWhatIsSet(t *testing.T) {
	for name, hold := range map[string]int64{"set": 64 << 10, "default": 0} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(o *Options) {
				o.Config.Storage.SegmentBytes, o.Config.Storage.RetentionCheckInterval = 64<<10, time.Hour
				if hold > 0 {
					o.Config.Streams.QueueHoldBytes = hold
				}
			})
			r.createStream(`{"stream":"jobs","durable":true,"kind":"Queue","retention":{"max_size_bytes":65536}}`)
			c := r.dial()
			_, err := c.Publish(t.Context(), "jobs", make([]byte, 500))
			require.NoError(t, err)
			messages, err := c.Group("jobs", "g").Poll(t.Context(), 0, 1)
			require.NoError(t, err)
			require.Len(t, messages, 1, "and it is not settled")
			for range 70 {
				_, err := c.Publish(t.Context(), "jobs", make([]byte, 8000))
				require.NoError(t, err)
			}
			retain := func() uint64 {
				status, body := r.call("POST", "/v1/tenants/default/namespaces/default/streams/jobs/retain", "")
				require.Equal(t, 200, status, "%s", body)
				var out struct{ Shards []struct{ Head uint64 } }
				require.NoError(t, json.Unmarshal(body, &out))
				return out.Shards[0].Head
			}
			r.reaches(func(rolls float64) bool { return rolls >= 4 }, "felix_storage_segment_roll_total")
			if hold > 0 {
				require.Eventually(t, func() bool { return retain() > 0 }, patience, 10*time.Millisecond) // segments are sealed in the background
				r.reaches(positive, "felix_storage_trimmed_segments_total")
				r.reaches(positive, "felix_storage_trimmed_bytes_total")
				require.Positive(t, r.metric("felix_group_settled_records", `outcome="lost"`))
			} else {
				require.Zero(t, retain())
			}
		})
	}
}
