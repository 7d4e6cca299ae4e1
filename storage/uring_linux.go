package storage

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/felixlog/felix/storage/vfs"
)

// The part of the io_uring interface that a flush needs; see io_uring(7).
const (
	ringEntries      = 128
	ringOpFsync      = 3
	ringFsyncData    = 1 // IORING_FSYNC_DATASYNC
	ringOffSQEs      = 0x10000000
	ringRegisterEvfd = 4
)

type ringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	_                                                    [3]uint32
	sq                                                   struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

type ringSQE struct {
	op, flags uint8
	prio      uint16
	fd        int32
	off, addr uint64
	len, rw   uint32
	data      uint64
	_         [3]uint64
}

type ringCQE struct {
	data  uint64
	res   int32
	flags uint32
}

// ring is the process's one io_uring, for flushes. A goroutine waits for completions, on
// an eventfd through the runtime's poller, only while a flush is in flight, so that
// neither a thread nor a goroutine is held by a ring at rest. It lives as long as the
// process.
type ring struct {
	fd    int
	event *os.File
	slots chan uint32 // free ones; a flush holds one
	done  [ringEntries]chan int32

	sqTail, sqMask         *uint32
	cqHead, cqTail, cqMask *uint32
	array, sqes, cqes      unsafe.Pointer

	submit   chan struct{} // a token for the submission queue and what follows
	inFlight int
	reaping  bool
}

var theRing = sync.OnceValues(newRing)

func processRing() (flusher, error) { return theRing() }

func newRing() (*ring, error) {
	var p ringParams
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, ringEntries, uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, fmt.Errorf("storage: io_uring setup: %w", e)
	}
	r, err := mapRing(int(fd), &p)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("storage: io_uring: %w", err), unix.Close(int(fd)))
	}
	return r, nil
}

func mapRing(fd int, p *ringParams) (*ring, error) {
	unix.CloseOnExec(fd)
	const access = unix.PROT_READ | unix.PROT_WRITE
	const flags = unix.MAP_SHARED | unix.MAP_POPULATE
	size := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(ringCQE{}))))
	if p.features&1 == 0 { // IORING_FEAT_SINGLE_MMAP, Linux 5.4
		return nil, errors.ErrUnsupported
	}
	queues, err := unix.Mmap(fd, 0, size, access, flags)
	if err != nil {
		return nil, err
	}
	entries, err := unix.Mmap(fd, ringOffSQEs, int(p.sqEntries)*int(unsafe.Sizeof(ringSQE{})), access, flags)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(queues))
	}
	evfd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(queues), unix.Munmap(entries))
	}
	event := os.NewFile(uintptr(evfd), "io_uring")
	arg := int32(evfd)
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), ringRegisterEvfd, uintptr(unsafe.Pointer(&arg)), 1, 0, 0); e != 0 {
		return nil, errors.Join(e, event.Close(), unix.Munmap(queues), unix.Munmap(entries))
	}
	at := func(o uint32) *uint32 { return (*uint32)(unsafe.Pointer(&queues[o])) }
	r := &ring{
		fd: fd, event: event, slots: make(chan uint32, ringEntries), submit: make(chan struct{}, 1),
		sqTail: at(p.sq.tail), sqMask: at(p.sq.mask), cqHead: at(p.cq.head), cqTail: at(p.cq.tail), cqMask: at(p.cq.mask),
		array: unsafe.Pointer(&queues[p.sq.array]), sqes: unsafe.Pointer(&entries[0]), cqes: unsafe.Pointer(&queues[p.cq.cqes]),
	}
	for i := range uint32(ringEntries) {
		r.slots <- i
		r.done[i] = make(chan int32, 1)
	}
	return r, nil
}

// datasync flushes f through the ring. A file without a descriptor, and an operation the
// kernel does not know, are flushed the blocking way.
func (r *ring) datasync(f vfs.File) error {
	fd := f.Fd()
	if fd == ^uintptr(0) {
		return f.Datasync()
	}
	slot := <-r.slots
	defer func() { r.slots <- slot }()
	for {
		if err := r.push(int32(fd), slot); err != nil {
			// Nothing was submitted.
			return f.Datasync()
		}
		switch errno := unix.Errno(-<-r.done[slot]); errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN:
		case unix.EINVAL, unix.EOPNOTSUPP:
			return f.Datasync()
		default:
			return &os.SyscallError{Syscall: "io_uring fdatasync", Err: errno}
		}
	}
}

// push submits one flush and sees to it that somebody waits for its completion.
func (r *ring) push(fd int32, slot uint32) error {
	r.submit <- struct{}{}
	defer func() { <-r.submit }()
	tail := *r.sqTail
	i := tail & *r.sqMask
	*(*ringSQE)(unsafe.Add(r.sqes, int(i)*int(unsafe.Sizeof(ringSQE{})))) = ringSQE{op: ringOpFsync, fd: fd, rw: ringFsyncData, data: uint64(slot)}
	*(*uint32)(unsafe.Add(r.array, 4*int(i))) = i
	atomic.StoreUint32(r.sqTail, tail+1)
	for {
		n, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 1, 0, 0, 0, 0)
		if e == unix.EINTR || e == unix.EAGAIN || e == unix.EBUSY {
			continue
		}
		if e != 0 || n != 1 {
			atomic.StoreUint32(r.sqTail, tail) // the kernel reads the queue in enter only
			return fmt.Errorf("storage: io_uring enter: %w", e)
		}
		break
	}
	r.inFlight++
	if !r.reaping {
		r.reaping = true
		go r.reap()
	}
	return nil
}

// reap hands completions to those who wait, until no flush is in flight.
func (r *ring) reap() {
	var b [8]byte
	for {
		if _, err := r.event.Read(b[:]); err != nil {
			runtime.Gosched() // it was interrupted: the queue says what is done
		}
		done := 0
		for head := *r.cqHead; head != atomic.LoadUint32(r.cqTail); head++ {
			c := *(*ringCQE)(unsafe.Add(r.cqes, int(head&*r.cqMask)*int(unsafe.Sizeof(ringCQE{}))))
			atomic.StoreUint32(r.cqHead, head+1)
			if c.data < ringEntries {
				r.done[c.data] <- c.res
				done++
			}
		}
		r.submit <- struct{}{}
		r.inFlight -= done
		if r.inFlight == 0 {
			r.reaping = false
			<-r.submit
			return
		}
		<-r.submit
	}
}
