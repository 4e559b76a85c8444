package store

import "math/rand/v2"

// NewUUID is a random (version 4) UUID.
func NewUUID() string {
	high, low := rand.Uint64()&^(0xf<<12)|4<<12, rand.Uint64()&^(3<<62)|2<<62
	const digits = "0123456789abcdef"
	var b [36]byte
	for i, at := range [...]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		octet := byte(high >> (56 - 8*(i%8)))
		if i >= 8 {
			octet = byte(low >> (56 - 8*(i%8)))
		}
		b[at], b[at+1] = digits[octet>>4], digits[octet&0xf]
	}
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}
