package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/felixlog/felix/internal/queue"
)

// Setting is one line of the table.
type Setting struct {
	Path    string // dotted, as in the YAML file
	Flag    string // without dashes
	Env     string
	Default string
	Kind    string // string, bool, count, bytes, duration or one|of|these
	Help    string

	set func(string) error
	get func() string
}

// Value is the setting's present value in the form the table reads.
func (s *Setting) Value() string { return s.get() }

// Set reads text into the setting; the error says what is allowed.
func (s *Setting) Set(text string) error { return s.set(text) }

// Settings binds the table to o. The order is the one `felix config` prints.
func Settings(o *Options) []Setting {
	t := builder{}
	st, li := &o.Storage, &o.Limits
	t.str(&o.Data, "data", "", "felix-data", "directory of everything the broker keeps")
	t.str(&o.Listen, "listen", "", "127.0.0.1:5000", "clients' address: QUIC on UDP and TLS on TCP")
	t.str(&o.HTTP.Listen, "http.listen", "", "127.0.0.1:8080", "address of API, health and metrics")
	t.str(&o.HTTP.TLSCert, "http.tls_cert", "FELIX_CONTROLPLANE_TLS_CERT", "", "PEM certificate chain for HTTPS on http.listen")
	t.str(&o.HTTP.TLSKey, "http.tls_key", "FELIX_CONTROLPLANE_TLS_KEY", "", "PEM key of http.tls_cert")
	t.bytes(&o.HTTP.MaxBodyBytes, "http.max_body_bytes", "", "1MiB", 1<<10, 64<<20, "largest request body")
	t.str(&o.TLS.Cert, "tls.cert", "", "", "PEM certificate chain for clients; empty: a private one for localhost")
	t.str(&o.TLS.Key, "tls.key", "", "", "PEM key of tls.cert")
	t.boolean(&o.TLS.RequireALPN, "tls.require_alpn", "", "false", "refuse clients that offer no ALPN")
	t.str(&o.Auth.Keys, "auth.keys", "", "", "directory of signing keys; empty: keys/ in the data directory")

	t.enum(&st.Mode, "storage.mode", "FELIX_STORAGE", StorageDisk, "where streams may live; none: in memory only", StorageDisk, StorageNone)
	t.rename("storage")
	t.str(&st.Dir, "storage.dir", "FELIX_DURABLE_STORAGE_DIR", "", "root of the durable logs; empty: streams/ in the data directory")
	t.enum(&st.FsyncMode, "storage.fsync_mode", "FELIX_DURABLE_FSYNC_MODE", FsyncPeriodic, "when records are flushed, unless the stream says so itself", FsyncNone, FsyncPeriodic, FsyncOnCommit)
	t.duration(&st.FsyncInterval, "storage.fsync_interval", "FELIX_DURABLE_FSYNC_INTERVAL_MS", "250ms", time.Millisecond, time.Hour, "interval of periodic flushes: the most a power cut can take")
	t.bytes(&st.SegmentBytes, "storage.segment_bytes", "FELIX_DURABLE_SEGMENT_BYTES", "256MiB", 4096, 4<<30-1, "size at which a log begins its next file")
	t.bytes(&st.IndexSpacingBytes, "storage.index_spacing_bytes", "FELIX_DURABLE_INDEX_SPACING_BYTES", "4KiB", 64, 64<<20, "bytes of log between two index entries")
	t.count(&st.MaxRecordsPerRead, "storage.max_records_per_read", "FELIX_DURABLE_MAX_RECORDS_PER_READ", "10000", 1, 1<<24, "records one read returns at most")
	t.bytes(&st.MaxRecordBytes, "storage.max_record_bytes", "", "8MiB", 1, 64<<20, "largest record")
	t.boolean(&st.Preallocate, "storage.preallocate", "FELIX_DURABLE_PREALLOCATE", "true", "reserve disk blocks ahead of the log's end")
	t.boolean(&st.ZeroAhead, "storage.zero_ahead", "", "true", "write zeros ahead of on_commit logs, so that a flush need not record a new length")
	t.boolean(&st.VerifyAllOnOpen, "storage.verify_all_on_open", "FELIX_DURABLE_VERIFY_ALL_ON_OPEN", "false", "checksum every sealed file at start")
	t.boolean(&st.RepairChecksumTail, "storage.repair_checksum_tail", "FELIX_DURABLE_REPAIR_CHECKSUM_TAIL", "false", "cut a complete last record whose checksum fails; such a record may have been acknowledged")
	t.boolean(&st.IOUring, "storage.io_uring", "FELIX_STORAGE_IO_URING", "false", "flush through io_uring where the kernel allows it")
	t.count(&st.MaxFlushes, "storage.max_flushes", "", "16", 1, 1024, "flushes in flight on the disk")
	t.count(&st.MaxOpenFiles, "storage.max_open_files", "", "2048", 16, 1<<20, "log files held open")
	t.size(&st.MinFree, "storage.min_free", "", "auto", 0, 1<<50, "room below which publishes are refused; auto: the smaller of 1 GiB and 5 %; 0: off")
	t.bytes(&st.RetentionBytes, "storage.retention_bytes", "", "0", 0, 1<<60, "bytes a shard keeps; 0: all")
	t.duration(&st.RetentionAge, "storage.retention_age", "", "0s", 0, 100*365*24*time.Hour, "age a shard keeps; 0: for ever")
	t.duration(&st.RetentionCheckInterval, "storage.retention_check_interval", "", "60s", 100*time.Millisecond, 24*time.Hour, "how often retention is evaluated")

	t.bytes(&o.Streams.RingBytes, "streams.ring_bytes", "", "4MiB", 4096, 1<<30, "recent records of a shard kept in memory")
	t.bytes(&o.Streams.RingsBytes, "streams.rings_bytes", "", "256MiB", 1<<20, 1<<40, "the same of all shards together")
	t.count(&o.Streams.QueueCapacity, "streams.queue_capacity", "", "1024", 1, 4096, "batches waiting for one subscriber of an in-memory stream")
	t.duration(&o.Streams.BlockTimeout, "streams.block_timeout", "", "5s", time.Millisecond, 10*time.Minute, "how long a full queue of overflow policy block holds publishers back")

	t.bytes(&o.Streams.QueueHoldBytes, "streams.queue_hold_bytes", "", "1GiB", 1, 1<<50, "by how much a shard of a stream of kind queue may exceed its retention for records that a group has not settled")

	t.bytes(&o.Caches.ValuesBytes, "caches.values_bytes", "", "32MiB", 0, 1<<40, "values that were put or read lately kept in memory, of all caches together; 0 keeps none")

	gr := &o.Groups
	t.duration(&gr.Visibility, "groups.visibility", "", queue.DefaultVisibility.String(), time.Millisecond, queue.MaxVisibility, "how long a claim stands when the poll does not say; of groups made from now on, as all of groups.*")
	t.count(&gr.MaxAttempts, "groups.max_attempts", "", formatCount(queue.DefaultMaxAttempts), 1, queue.MaxMaxAttempts, "deliveries before a record is a dead letter")
	t.duration(&gr.Backoff, "groups.backoff", "", "0s", 0, queue.MaxDelay, "delay after the first nack that names none, doubled with each")
	t.duration(&gr.BackoffMax, "groups.backoff_max", "", "0s", 0, queue.MaxDelay, "the longest such delay; 0: 12 h")
	t.count(&gr.MaxInFlight, "groups.max_in_flight", "", formatCount(queue.DefaultMaxInFlight), 1, queue.MostInFlight, "claimed and delayed records of a group")

	t.bytes(&li.FrameBytes, "limits.frame_bytes", "FELIX_MAX_FRAME_BYTES", "16MiB", 4096, 128<<20, "largest frame after authentication")
	t.bytes(&li.PreauthFrameBytes, "limits.preauth_frame_bytes", "FELIX_PREAUTH_MAX_FRAME_BYTES", "64KiB", 1024, 1<<20, "largest frame before authentication")
	t.count(&li.PreauthStreams, "limits.preauth_streams", "FELIX_PREAUTH_MAX_STREAMS_PER_CONN", "16", 1, 1024, "streams read on a connection before one is authenticated")
	t.duration(&li.AuthTimeout, "limits.auth_timeout", "FELIX_AUTH_TIMEOUT_MS", "10s", 0, time.Hour, "time to the first authenticated stream; 0: no limit")
	t.count(&li.Subscriptions, "limits.subscriptions", "", "1000", 1, 1<<20, "subscriptions of one connection")
	t.count(&li.Connections, "limits.connections", "FELIX_MAX_CLIENT_CONNECTIONS", "8192", 1, 1<<20, "client connections")
	t.count(&li.PublishWindow, "limits.publish_window", "FELIX_BROKER_PUBLISH_WINDOW", "256", 1, 65535, "unanswered publishes on one stream")
	t.bytes(&li.ConnectionInflightBytes, "limits.connection_inflight_bytes", "FELIX_BROKER_PUBLISH_CONN_INFLIGHT_BYTES", "16MiB", 64<<10, 1<<40, "unanswered publish bytes of one connection")
	t.bytes(&li.TenantInflightBytes, "limits.tenant_inflight_bytes", "", "128MiB", 64<<10, 1<<40, "unanswered publish bytes of one tenant")
	t.bytes(&li.TenantBytesPerSecond, "limits.tenant_bytes_per_second", "", "0", 0, 1<<40, "payload bytes a tenant may write a second, unless the tenant says so itself; 0: no bound")
	t.count(&li.TenantRecordsPerSecond, "limits.tenant_records_per_second", "", "0", 0, 1<<40, "records a tenant may write a second, unless the tenant says so itself; 0: no bound")
	t.bytes(&li.NodeInflightBytes, "limits.node_inflight_bytes", "", "256MiB", 64<<10, 1<<40, "unanswered publish bytes of the broker")
	t.bytes(&li.ReadPageBytes, "limits.read_page_bytes", "", FormatBytes(defaultPageBytes), 1, 64<<20, "payload of one page of a read by range, one record in any case; within limits.frame_bytes and the 16MiB frame of a client")
	t.count(&li.PollRecords, "limits.poll_records", "", "1000", 1, queue.MaxPollRecords, "records of one poll of a group")
	t.bytes(&li.PollBytes, "limits.poll_bytes", "", FormatBytes(defaultPageBytes), 1, 64<<20, "payload of one poll of a group, one record in any case; within limits.frame_bytes and the 16MiB frame of a client")
	t.duration(&li.PollWait, "limits.poll_wait", "", "30s", time.Millisecond, time.Hour, "how long a poll of a group that finds nothing may wait")
	t.duration(&li.IdleTimeout, "limits.idle_timeout", "FELIX_MAX_IDLE_TIMEOUT_MS", "30s", time.Second, time.Hour, "silence after which a connection is given up")
	t.duration(&li.KeepAlive, "limits.keepalive", "FELIX_KEEPALIVE_MS", "5s", 100*time.Millisecond, time.Hour, "interval of keep-alives on a silent connection")

	t.enum(&o.Log.Level, "log.level", "", "info", "least level that is logged", "debug", "info", "warn", "error")
	t.enum(&o.Log.Format, "log.format", "", "auto", "auto: text on a terminal, JSON elsewhere", "auto", "text", "json")
	t.duration(&o.Shutdown.Timeout, "shutdown.timeout", "", "10s", 100*time.Millisecond, time.Hour, "bound of a graceful stop")
	t.size(&o.Memory.Limit, "memory.limit", "", "auto", 1<<20, 1<<50, "soft memory limit; auto: GOMEMLIMIT, else nine tenths of the container's")
	return t
}

type builder []Setting

func (b *builder) add(path, env, def, kind, help string, set func(string) error, get func() string) {
	if env == "" {
		env = "FELIX_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
	}
	*b = append(*b, Setting{
		Path: path, Env: env, Default: def, Kind: kind, Help: help, set: set, get: get,
		Flag: strings.NewReplacer(".", "-", "_", "-").Replace(path),
	})
}

// rename gives the last line a flag of its own.
func (b builder) rename(flag string) { b[len(b)-1].Flag = flag }

func (b *builder) str(p *string, path, env, def, help string) {
	b.add(path, env, def, "string", help, func(s string) error { *p = s; return nil }, func() string { return *p })
}

func (b *builder) enum(p *string, path, env, def, help string, allowed ...string) {
	set := func(s string) error {
		for _, a := range allowed {
			if s == a {
				*p = s
				return nil
			}
		}
		return fmt.Errorf("%q is not one of %s", s, strings.Join(allowed, ", "))
	}
	b.add(path, env, def, strings.Join(allowed, "|"), help, set, func() string { return *p })
}

func (b *builder) boolean(p *bool, path, env, def, help string) {
	set := func(s string) error {
		switch strings.ToLower(s) {
		case "1", "true", "yes", "on":
			*p = true
		case "0", "false", "no", "off":
			*p = false
		default:
			return fmt.Errorf("%q is neither true nor false", s)
		}
		return nil
	}
	get := func() string {
		if *p {
			return "true"
		}
		return "false"
	}
	b.add(path, env, def, "bool", help, set, get)
}

func (b *builder) count(p *int64, path, env, def string, lo, hi int64, help string) {
	set := func(s string) error {
		n, err := parseCount(s)
		if err != nil {
			return err
		}
		if err := inRange(n, lo, hi, formatCount); err != nil {
			return err
		}
		*p = n
		return nil
	}
	b.add(path, env, def, "count", help, set, func() string { return formatCount(*p) })
}

func (b *builder) bytes(p *int64, path, env, def string, lo, hi int64, help string) {
	set := func(s string) error {
		n, err := ParseBytes(s)
		if err != nil {
			return err
		}
		if err := inRange(n, lo, hi, FormatBytes); err != nil {
			return err
		}
		*p = n
		return nil
	}
	b.add(path, env, def, "bytes", help, set, func() string { return FormatBytes(*p) })
}

// size is bytes or "auto".
func (b *builder) size(p *int64, path, env, def string, lo, hi int64, help string) {
	set := func(s string) error {
		if s == "auto" {
			*p = Auto
			return nil
		}
		n, err := ParseBytes(s)
		if err != nil {
			return err
		}
		if err := inRange(n, lo, hi, FormatBytes); err != nil {
			return err
		}
		*p = n
		return nil
	}
	get := func() string {
		if *p == Auto {
			return "auto"
		}
		return FormatBytes(*p)
	}
	b.add(path, env, def, "bytes|auto", help, set, get)
}

func (b *builder) duration(p *time.Duration, path, env, def string, lo, hi time.Duration, help string) {
	set := func(s string) error {
		d, err := ParseDuration(s)
		if err != nil {
			return err
		}
		if err := inRange(d, lo, hi, time.Duration.String); err != nil {
			return err
		}
		*p = d
		return nil
	}
	b.add(path, env, def, "duration", help, set, func() string { return p.String() })
}

func inRange[T int64 | time.Duration](n, lo, hi T, show func(T) string) error {
	if n < lo {
		return fmt.Errorf("%s is below the least allowed, %s", show(n), show(lo))
	}
	if n > hi {
		return fmt.Errorf("%s is above the most allowed, %s", show(n), show(hi))
	}
	return nil
}
