// Package crashes holds the tests of relays in processes of their own, which are killed while they
// work. It has nothing but tests.
package crashes
