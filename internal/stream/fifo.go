package stream

// fifo is a queue over one slice: pushes and pops cost no allocation once the slice
// has grown to the queue's usual length.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

// at is the i-th item from the front.
func (f *fifo[T]) at(i int) *T { return &f.items[f.head+i] }

func (f *fifo[T]) push(v T) {
	if f.head > 0 && len(f.items) == cap(f.items) && f.head >= len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, v)
}

func (f *fifo[T]) pop() T {
	v := f.items[f.head]
	var zero T
	f.items[f.head] = zero
	f.head++
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return v
}

// popBack removes the newest item.
func (f *fifo[T]) popBack() T {
	last := len(f.items) - 1
	v := f.items[last]
	var zero T
	f.items[last] = zero
	f.items = f.items[:last]
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return v
}

func (f *fifo[T]) clear() {
	clear(f.items)
	f.items, f.head = f.items[:0], 0
}
