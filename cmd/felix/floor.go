package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage/vfs"
)

// The bare broker is what the machine allows a broker without meaning: frames of
// length and checksum over TCP, one file, one write and one flush for all that
// waits, and an answer that counts. No streams, offsets, permissions or errors.
//
// A connection's first byte says what it is: 'p' publishes and is answered with the
// count of its frames that are stored, 's' is sent every frame from now on, 'r' is
// sent the file from its start and closed.

const (
	floorPublish   = 'p'
	floorSubscribe = 's'
	floorRead      = 'r'
	floorHead      = 8       // length and checksum, each 4 bytes
	floorQueue     = 8 << 20 // bytes that may wait to be written
)

var floorTable = crc32.MakeTable(crc32.Castagnoli)

func appendFloorFrame(dst, payload []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(payload, floorTable))
	return append(dst, payload...)
}

func (e *environment) floorCommand() *cobra.Command {
	var dir string
	var sync bool
	var size int64
	c := &cobra.Command{
		Use: "bench-floor", Short: "Serve the bare broker that bench compares with", Hidden: true, Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			f, err := newFloor(dir, size, sync)
			if err != nil {
				return err
			}
			context.AfterFunc(c.Context(), func() { l.Close() })
			printJSON(e.err, map[string]string{"msg": "serving", "clients": l.Addr().String()})
			return f.serve(l)
		}),
	}
	c.Flags().StringVar(&dir, "dir", ".", "directory of the file")
	c.Flags().Int64Var(&size, "size", 512<<20, "bytes of the file; at its end it starts over")
	c.Flags().BoolVar(&sync, "sync", false, "flush before answering")
	return c
}

type floor struct {
	f    vfs.File
	size int64 // of the file; at its end it starts over
	sync bool

	mu     sync.Mutex
	change *sync.Cond // buf or room changed
	buf    []byte
	wait   []floorAck
	stored int64 // bytes written since the file was begun
	subs   []net.Conn
}

type floorAck struct {
	conn  net.Conn
	count uint64
}

// newFloor writes the file full of zeros first: flushes then record no length.
func newFloor(dir string, size int64, flush bool) (*floor, error) {
	f, err := vfs.OS().OpenFile(filepath.Join(dir, "floor"), vfs.Create)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, at); err != nil {
			return nil, err
		}
	}
	b := &floor{f: f, size: size, sync: flush}
	b.change = sync.NewCond(&b.mu)
	return b, f.Sync()
}

func (b *floor) serve(l net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- b.store() }()
	accepted := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				accepted <- err
				return
			}
			go b.take(c)
		}
	}()
	select {
	case err := <-failed:
		return err
	case err := <-accepted:
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	}
}

// store writes, flushes and answers all that waits, over and over.
func (b *floor) store() error {
	var spare []byte
	var spareWait []floorAck
	var answer [8]byte
	for {
		b.mu.Lock()
		for len(b.buf) == 0 {
			b.change.Wait()
		}
		buf, wait, subs := b.buf, b.wait, b.subs
		b.buf, b.wait = spare[:0], spareWait[:0]
		at := b.stored
		b.mu.Unlock()
		b.change.Broadcast()
		if at+int64(len(buf)) > b.size {
			at = 0
		}
		if _, err := b.f.WriteAt(buf, at); err != nil {
			return err
		}
		if b.sync {
			if err := b.f.Datasync(); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.stored = at + int64(len(buf))
		b.mu.Unlock()
		for _, w := range wait {
			binary.LittleEndian.PutUint64(answer[:], w.count)
			if _, err := w.conn.Write(answer[:]); err != nil {
				continue // it left; the others did not
			}
		}
		for _, c := range subs {
			if _, err := c.Write(buf); err != nil {
				continue
			}
		}
		spare, spareWait = buf, wait
	}
}

func (b *floor) take(c net.Conn) {
	var kind [1]byte
	if _, err := io.ReadFull(c, kind[:]); err != nil {
		c.Close()
		return
	}
	switch kind[0] {
	case floorSubscribe:
		b.mu.Lock()
		b.subs = append(b.subs[:len(b.subs):len(b.subs)], c)
		b.mu.Unlock()
		if _, err := c.Write(kind[:]); err != nil {
			c.Close()
		}
	case floorRead:
		defer c.Close()
		b.mu.Lock()
		end := b.stored
		b.mu.Unlock()
		if _, err := io.Copy(c, io.NewSectionReader(b.f, 0, end)); err != nil {
			return
		}
	case floorPublish:
		defer c.Close()
		b.publishes(c)
	}
}

// publishes queues every whole frame of each read.
func (b *floor) publishes(c net.Conn) {
	in := make([]byte, 256<<10)
	have, count := 0, uint64(0)
	for {
		n, err := c.Read(in[have:])
		if err != nil {
			return
		}
		have += n
		end := 0
		for have-end >= floorHead {
			size := int(binary.LittleEndian.Uint32(in[end:]))
			if size > len(in)-floorHead || have-end < floorHead+size {
				break
			}
			if crc32.Checksum(in[end+floorHead:end+floorHead+size], floorTable) != binary.LittleEndian.Uint32(in[end+4:]) {
				return
			}
			end += floorHead + size
			count++
		}
		if end == 0 {
			if have == len(in) {
				return // a frame that does not fit
			}
			continue
		}
		b.mu.Lock()
		for len(b.buf) > floorQueue {
			b.change.Wait()
		}
		b.buf = append(b.buf, in[:end]...)
		b.wait = append(b.wait, floorAck{c, count})
		b.mu.Unlock()
		b.change.Broadcast()
		copy(in, in[end:have])
		have -= end
	}
}

// floorClient publishes to the bare broker over one connection that its callers
// share: what they add while a write is under way goes with the next one.
type floorClient struct {
	conn net.Conn

	mu      sync.Mutex
	work    *sync.Cond // the writer's
	room    *sync.Cond // of those who wait for the window
	buf     []byte
	sent    uint64
	stored  uint64
	waiting []floorWaiter // ascending
	err     error
	running sync.WaitGroup
}

type floorWaiter struct {
	number uint64
	done   chan struct{} // of size 1
}

var floorChannels = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

func dialFloor(addr string, kind byte) (net.Conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{kind}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if kind == floorSubscribe {
		var ok [1]byte
		if _, err := io.ReadFull(c, ok[:]); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func newFloorClient(addr string) (*floorClient, error) {
	conn, err := dialFloor(addr, floorPublish)
	if err != nil {
		return nil, err
	}
	c := &floorClient{conn: conn}
	c.work, c.room = sync.NewCond(&c.mu), sync.NewCond(&c.mu)
	c.running.Go(c.write)
	c.running.Go(c.read)
	return c, nil
}

func (c *floorClient) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	for _, w := range c.waiting {
		w.done <- struct{}{}
	}
	c.waiting = nil
	c.work.Broadcast()
	c.room.Broadcast()
}

func (c *floorClient) write() {
	var spare []byte
	for {
		c.mu.Lock()
		for len(c.buf) == 0 && c.err == nil {
			c.work.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		buf := c.buf
		c.buf = spare[:0]
		c.mu.Unlock()
		if _, err := c.conn.Write(buf); err != nil {
			c.fail(err)
			return
		}
		spare = buf
	}
}

func (c *floorClient) read() {
	r := bufio.NewReader(c.conn)
	var count [8]byte
	for {
		if _, err := io.ReadFull(r, count[:]); err != nil {
			c.fail(fmt.Errorf("bare broker: %w", err))
			return
		}
		c.mu.Lock()
		c.stored = binary.LittleEndian.Uint64(count[:])
		n := 0
		for n < len(c.waiting) && c.waiting[n].number <= c.stored {
			c.waiting[n].done <- struct{}{}
			n++
		}
		c.waiting = append(c.waiting[:0], c.waiting[n:]...)
		c.room.Signal()
		c.mu.Unlock()
	}
}

// add needs the lock.
func (c *floorClient) add(payload []byte) uint64 {
	if len(c.buf) == 0 {
		c.work.Signal()
	}
	c.sent++
	c.buf = appendFloorFrame(c.buf, payload)
	return c.sent
}

// send puts a record under way, with at most window unanswered. One caller at a time.
func (c *floorClient) send(payload []byte, window uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.sent-c.stored >= window && c.err == nil {
		c.room.Wait()
	}
	c.add(payload)
	return c.err
}

// drain waits until everything sent is stored. One caller at a time, not beside send.
func (c *floorClient) drain() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.stored < c.sent && c.err == nil {
		c.room.Wait()
	}
	return c.err
}

// publish sends a record and waits until it is stored.
func (c *floorClient) publish(payload []byte) error {
	done := floorChannels.Get().(chan struct{})
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.waiting = append(c.waiting, floorWaiter{c.add(payload), done})
	c.mu.Unlock()
	<-done
	floorChannels.Put(done)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *floorClient) close() {
	c.fail(net.ErrClosed)
	c.conn.Close()
	c.running.Wait()
}
