package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/felixlog/felix/wire"
)

// Validate refuses what cannot work together. It looks at no file.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	pair := func(a, av, b, bv string) {
		if (av == "") != (bv == "") {
			bad("%s and %s belong together: give both or none", a, b)
		}
	}
	pair("tls.cert", o.TLS.Cert, "tls.key", o.TLS.Key)
	pair("http.tls_cert", o.HTTP.TLSCert, "http.tls_key", o.HTTP.TLSKey)

	for _, l := range []struct{ path, addr, certPath, cert string }{
		{"listen", o.Listen, "tls.cert", o.TLS.Cert}, {"http.listen", o.HTTP.Listen, "http.tls_cert", o.HTTP.TLSCert},
	} {
		loopback, err := Loopback(l.addr)
		switch {
		case err != nil:
			bad("%s: %w", l.path, err)
		case loopback:
		case l.cert == "":
			bad("%s %s can be reached from other machines: give %s and its key, or a loopback address; the certificate made at the first start is for localhost only", l.path, l.addr, l.certPath)
		case o.Auth.Keys == "":
			bad("%s %s can be reached from other machines: give auth.keys, a directory of signing keys of your own; the key made at the first start is in a file of this user", l.path, l.addr)
		}
	}
	if o.Data == "" {
		bad("data must name a directory")
	}
	st, li := &o.Storage, &o.Limits
	if st.Dir != "" && o.Data != "" && !ownDirectory(o.Data, st.Dir) {
		bad("storage.dir %s must be a directory of its own: not the data directory %s, nor one that holds it, nor one of meta, keys and tls in it", st.Dir, o.Data)
	}
	if st.Mode == StorageNone {
		if st.Dir != "" {
			bad("storage.mode none and storage.dir exclude each other: the directory would never be used")
		}
		if st.FsyncMode == FsyncOnCommit {
			bad("storage.mode none and storage.fsync_mode on_commit exclude each other: nothing is written that could be flushed")
		}
	}
	if st.IndexSpacingBytes >= st.SegmentBytes {
		bad("storage.index_spacing_bytes %s must be below storage.segment_bytes %s", FormatBytes(st.IndexSpacingBytes), FormatBytes(st.SegmentBytes))
	}
	if st.RepairChecksumTail && st.FsyncMode == FsyncOnCommit {
		bad("storage.repair_checksum_tail and storage.fsync_mode on_commit exclude each other: the record cut may have been flushed and acknowledged")
	}
	// A record travels in one frame with its names and counts; 64 KiB covers both.
	if st.MaxRecordBytes > MostRecordBytes(li.FrameBytes) {
		bad("storage.max_record_bytes %s does not fit limits.frame_bytes %s in base64 with 64KiB beside it", FormatBytes(st.MaxRecordBytes), FormatBytes(li.FrameBytes))
	}
	for _, page := range []struct {
		path  string
		bytes int64
	}{{"limits.read_page_bytes", li.ReadPageBytes}, {"limits.poll_bytes", li.PollBytes}} {
		// The default is brought within a small frame, what somebody asks for is not.
		if most := max(MostPageBytes(li.FrameBytes), defaultPageBytes); page.bytes > most {
			bad("%s %s does not fit limits.frame_bytes %s, or the frame of %s that clients take by default, in base64 with 64KiB beside it: give at most %s",
				page.path, FormatBytes(page.bytes), FormatBytes(li.FrameBytes), FormatBytes(wire.DefaultMaxFrame), FormatBytes(most))
		}
	}
	if li.PreauthFrameBytes > li.FrameBytes {
		bad("limits.preauth_frame_bytes %s is above limits.frame_bytes %s", FormatBytes(li.PreauthFrameBytes), FormatBytes(li.FrameBytes))
	}
	if li.ConnectionInflightBytes > li.NodeInflightBytes {
		bad("limits.connection_inflight_bytes %s is above limits.node_inflight_bytes %s", FormatBytes(li.ConnectionInflightBytes), FormatBytes(li.NodeInflightBytes))
	}
	if li.TenantInflightBytes > li.NodeInflightBytes {
		bad("limits.tenant_inflight_bytes %s is above limits.node_inflight_bytes %s", FormatBytes(li.TenantInflightBytes), FormatBytes(li.NodeInflightBytes))
	}
	if st.MaxRecordBytes > li.ConnectionInflightBytes {
		bad("storage.max_record_bytes %s is above limits.connection_inflight_bytes %s: such a record could never be admitted", FormatBytes(st.MaxRecordBytes), FormatBytes(li.ConnectionInflightBytes))
	}
	if o.Streams.RingBytes > o.Streams.RingsBytes {
		bad("streams.ring_bytes %s is above streams.rings_bytes %s", FormatBytes(o.Streams.RingBytes), FormatBytes(o.Streams.RingsBytes))
	}
	if g := &o.Groups; g.BackoffMax != 0 && g.BackoffMax < g.Backoff {
		bad("groups.backoff_max %s is below groups.backoff %s", g.BackoffMax, g.Backoff)
	}
	if li.KeepAlive >= li.IdleTimeout {
		bad("limits.keepalive %s must be below limits.idle_timeout %s", li.KeepAlive, li.IdleTimeout)
	}
	return errors.Join(errs...)
}

// ownDirectory says whether shards in dir lie beside what else is in the data directory.
func ownDirectory(data, dir string) bool {
	within := func(root, name string) bool {
		absRoot, err1 := filepath.Abs(root)
		absName, err2 := filepath.Abs(name)
		rel, err3 := filepath.Rel(absRoot, absName)
		return errors.Join(err1, err2, err3) == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	}
	for _, taken := range []string{"meta", "keys", "tls"} {
		if within(filepath.Join(data, taken), dir) {
			return false
		}
	}
	return !within(dir, data)
}

// Loopback reports whether addr (host:port) can only be reached from this
// machine. An empty host listens everywhere.
func Loopback(addr string) (bool, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("%q is no host:port: %w", addr, err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return false, fmt.Errorf("%q has no port of 0 to 65535: %w", addr, err)
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false, nil
	}
	return ip.IsLoopback(), nil
}

// frameOverhead is what a frame may need beside one record: names, key, counts.
const frameOverhead = 64 << 10

// MostRecordBytes is the largest record that a frame of frameBytes carries in every form
// it has: a read or a poll answers in base64, which takes four bytes for three.
func MostRecordBytes(frameBytes int64) int64 {
	return max(0, frameBytes-frameOverhead) / 4 * 3
}

// defaultPageBytes is what the table has for pages and polls.
const defaultPageBytes = 4 << 20

// MostPageBytes is the most payload of a page or a poll of several records: a client that
// is not set otherwise ends a connection whose frames are above wire.DefaultMaxFrame.
func MostPageBytes(frameBytes int64) int64 {
	return MostRecordBytes(min(frameBytes, wire.DefaultMaxFrame))
}
