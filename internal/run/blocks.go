package run

import (
	"sync"

	"github.com/txoutbox/outbox/internal/store"
)

// blockRows is how many rows a block has. Rows are made in blocks, which a large claim gives back
// when it has ended: they would be half of the garbage that it makes, and collecting that a good
// part of what it costs its process.
const blockRows = 64

type rowBlock [blockRows]store.Row

var rowBlocks = sync.Pool{New: func() any { return new(rowBlock) }}

// rowRoom is where the rows of a claim are.
type rowRoom struct{ blocks []*rowBlock }

// rowsFor is room for some of the rows of a claim of up to limit.
func (r *rowRoom) rowsFor(limit int) []store.Row {
	if limit < blockRows {
		return make([]store.Row, limit)
	}
	b := rowBlocks.Get().(*rowBlock)
	r.blocks = append(r.blocks, b)
	return b[:]
}

// recycle gives the blocks back, when nobody has a row any more.
func (r *rowRoom) recycle() {
	for _, b := range r.blocks {
		clear(b[:])
		rowBlocks.Put(b)
	}
	r.blocks = nil
}
