//go:build !race

package relaytest

// RaceDetector says whether the race detector is at work. It makes all slower.
const RaceDetector = false
