package relaytest

import (
	"os"

	"github.com/txoutbox/outbox/internal/testing/needs"
)

// Timing says that tests assert rates and milliseconds too: OUTBOX_TEST_TIMING=1. A busy machine
// misses them.
var Timing = os.Getenv("OUTBOX_TEST_TIMING") == "1"

// Long says that tests try all of what they otherwise try a part of: OUTBOX_TEST_LONG=1.
var Long = os.Getenv("OUTBOX_TEST_LONG") != ""

// CI says that tests try what each push needs, and more than each go test: OUTBOX_TEST_REQUIRE=all.
var CI = needs.InCI()

// Times is few, or many where Long.
func Times(few, many int) int {
	if Long {
		return many
	}
	return few
}

// Part is some of all, evenly spread, where not Long.
func Part[T any](all []T, some int) (out []T) {
	if Long || len(all) <= some {
		return all
	}
	for i := range some {
		out = append(out, all[i*len(all)/some])
	}
	return out
}
