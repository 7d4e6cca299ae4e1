package storage_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/segment"
)

// Append, read, trim, and open again after a crash in the middle of a write.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "log")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	l, err := storage.Open(ctx, dir, storage.Options{Fsync: storage.OnCommit})
	if err != nil {
		log.Fatal(err)
	}
	b := &storage.Batch{Payloads: [][]byte{[]byte("one"), []byte("two")}}
	if err := l.Append(ctx, b); err != nil {
		log.Fatal(err)
	}
	fmt.Println("first offset", b.First)
	if _, err := l.Seal(ctx); err != nil {
		log.Fatal(err)
	}
	if err := l.Append(ctx, &storage.Batch{Payloads: [][]byte{[]byte("three")}}); err != nil {
		log.Fatal(err)
	}
	if _, err := l.TrimHead(ctx, 2); err != nil {
		log.Fatal(err)
	}
	if err := l.Close(ctx); err != nil {
		log.Fatal(err)
	}

	// What a crash leaves that tore a write: half a record behind the last whole one.
	f, err := os.OpenFile(filepath.Join(dir, segment.SegmentName(1)), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		log.Fatal(err)
	}
	half := segment.AppendRecord(nil, &segment.RecordSpec{Offset: 3, Payload: []byte("never finished")})
	if _, err := f.Write(half[:20]); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}

	l, err = storage.Open(ctx, dir, storage.Options{Fsync: storage.OnCommit})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("cut", l.Recovery().TruncatedBytes, "bytes")
	var p storage.Page
	err = l.Read(ctx, &p, storage.ReadRange{From: 0})
	fmt.Println(err)
	if err := l.Read(ctx, &p, storage.ReadRange{From: l.Head()}); err != nil {
		log.Fatal(err)
	}
	for _, r := range p.Records {
		fmt.Printf("%d %s\n", r.Offset, r.Payload)
	}
	if err := l.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// first offset 0
	// cut 20 bytes
	// storage: offset 0 was trimmed; the oldest is 2
	// 2 three
}
