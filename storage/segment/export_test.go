package segment

import "unsafe"

// Retained is the memory a buffer keeps for the next page, in bytes.
func (b *ReadBuffer) Retained() int {
	return cap(b.buf) + cap(b.Records)*int(unsafe.Sizeof(Record{}))
}
