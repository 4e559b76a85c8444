package store

import "strconv"

// BigintArray is an array of bigints as a literal.
func BigintArray(ids []int64) string {
	b := make([]byte, 0, 2+12*len(ids))
	b = append(b, '{')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(append(b, '}'))
}
