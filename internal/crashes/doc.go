// Package crashes holds the tests of relays in processes of their own, which are killed and frozen
// while they work. It has nothing but tests; what they share with those of the package relay is in
// relaytest.
package crashes
