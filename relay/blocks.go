package relay

import (
	"sync"

	"github.com/txoutbox/outbox/internal/store"
)

// blockRows is how many rows a block has. Rows are made in blocks, which a large claim gives back when it has ended: they would be half of
// the garbage that it makes, and collecting that a good part of what it costs its process.
const blockRows = 64

type rowBlock [blockRows]store.Row

var rowBlocks = sync.Pool{New: func() any { return new(rowBlock) }}

// rowsFor is room for some of the rows of a claim of up to limit.
func (a *attempt) rowsFor(limit int) []store.Row {
	if limit < blockRows {
		return make([]store.Row, limit)
	}
	b := rowBlocks.Get().(*rowBlock)
	a.blocks = append(a.blocks, b)
	return b[:]
}

// recycle gives the blocks back. Nobody has a row of the attempt any more.
func (a *attempt) recycle() {
	for _, b := range a.blocks {
		clear(b[:])
		rowBlocks.Put(b)
	}
	a.blocks, a.rows = nil, nil
}
