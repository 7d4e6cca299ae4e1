package segment_test

import (
	"bytes"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/felixlog/felix/storage/segment"
	"github.com/felixlog/felix/storage/vfs"
)

// The benchmarks print their figure beside that of a bare loop over the same bytes, run
// in alternating slices, and the ratio: a share of what the machine allows.

func benchFile(records, payload int) []byte {
	b := segment.AppendHeader(nil, segment.Header{Version: segment.VersionPlain})
	p := bytes.Repeat([]byte("x1y2z3w4"), payload/8+1)[:payload]
	for i := range records {
		b = segment.AppendRecord(b, &segment.RecordSpec{Offset: segment.Offset(i), Timestamp: segment.Micros(i), Payload: p})
	}
	return b
}

func BenchmarkAppendRecord(b *testing.B) {
	for _, size := range []int{16, 128, 1024, 4096} {
		b.Run(sizeName(size), func(b *testing.B) {
			payload := make([]byte, size)
			buf := make([]byte, 0, 1<<20)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			var i segment.Offset
			for b.Loop() {
				if len(buf)+size+64 > cap(buf) {
					buf = buf[:0]
				}
				buf = segment.AppendRecord(buf, &segment.RecordSpec{Offset: i, Timestamp: 1, Payload: payload})
				i++
			}
		})
		b.Run(sizeName(size)+"/bare-copy-crc", func(b *testing.B) {
			payload := make([]byte, size)
			buf := make([]byte, 0, 1<<20)
			b.SetBytes(int64(size))
			var sum uint32
			for b.Loop() {
				if len(buf)+size+64 > cap(buf) {
					buf = buf[:0]
				}
				at := len(buf)
				buf = append(buf, payload...)
				sum = crc32.ChecksumIEEE(buf[at:])
			}
			sink = sum
		})
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	for _, size := range []int{16, 128, 1024, 4096} {
		b.Run(sizeName(size), func(b *testing.B) {
			buf := benchFile(1, size)[segment.HeaderSize:]
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				r, _, err := segment.DecodeRecord(buf, 0)
				if err != nil {
					b.Fatal(err)
				}
				sink ^= r.Checksum
			}
		})
	}
}

var sink uint32

func sizeName(n int) string {
	return map[int]string{16: "16B", 128: "128B", 1024: "1KiB", 4096: "4KiB"}[n]
}

// bareLoop reads and sums the same file the same way a reader without meaning would.
func bareLoop(r io.ReaderAt, size int64, buf []byte, payload int) uint32 {
	var sum uint32
	for at := int64(0); at < size; {
		n, _ := r.ReadAt(buf, at)
		if n == 0 {
			break
		}
		at += int64(n)
		for p := buf[:n]; len(p) > 0; {
			k := min(payload, len(p))
			sum ^= crc32.ChecksumIEEE(p[:k])
			p = p[k:]
		}
	}
	return sum
}

// ratio runs ours and bare in alternating slices and reports the median of the ratios of
// their times, as the share of the bare loop's speed that ours reaches.
func ratio(b *testing.B, size int64, bare, ours func()) {
	var ratios, rates []float64
	for b.Loop() {
		start := time.Now()
		bare()
		middle := time.Now()
		ours()
		end := time.Now()
		ratios = append(ratios, middle.Sub(start).Seconds()/end.Sub(middle).Seconds())
		rates = append(rates, float64(size)/end.Sub(middle).Seconds())
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	b.ReportMetric(ratios[len(ratios)/2], "of-bare")
	b.ReportMetric(rates[len(rates)/2]/1e6, "MB/s")
}

func benchOnDisk(b *testing.B, payload int) (vfs.File, int64) {
	data := benchFile((64<<20)/(payload+28), payload)
	path := filepath.Join(b.TempDir(), segment.SegmentName(0))
	require.NoError(b, os.WriteFile(path, data, 0o600))
	f, err := vfs.OS().OpenFile(path, vfs.ReadOnly)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, f.Close()) })
	return f, int64(len(data))
}

func BenchmarkScan(b *testing.B) {
	for _, payload := range []int{16, 128, 1024} {
		b.Run(sizeName(payload), func(b *testing.B) {
			f, size := benchOnDisk(b, payload)
			buf := make([]byte, 256<<10)
			ratio(b, size, func() { sink ^= bareLoop(f, size, buf, payload+28) }, func() {
				x := segment.NewIndex(0, 0)
				res, err := segment.Scan(b.Context(), f, size, segment.ScanStart{Index: x}, nil)
				if err != nil || res.Damage != nil {
					b.Fatal(err, res.Damage)
				}
			})
		})
	}
}

func BenchmarkReadInto(b *testing.B) {
	for _, payload := range []int{16, 128, 1024} {
		for _, budget := range []int{64 << 10, 1 << 20} {
			b.Run(sizeName(payload)+"/"+strconv.Itoa(budget>>10)+"KiB-pages", func(b *testing.B) {
				f, size := benchOnDisk(b, payload)
				buf := make([]byte, 256<<10)
				var page segment.ReadBuffer
				ratio(b, size, func() { sink ^= bareLoop(f, size, buf, payload+28) }, func() {
					at := segment.ScanStart{Position: segment.HeaderSize}
					for at.Position < size {
						page.Reset()
						res, err := segment.ReadInto(b.Context(), f, at, segment.ReadLimits{EndPosition: size, MaxBytes: budget, MaxRecords: 10000}, &page)
						if err != nil {
							b.Fatal(err)
						}
						at.Position, at.Offset = res.Position, res.Next
					}
				})
				b.ReportAllocs()
			})
		}
	}
}
