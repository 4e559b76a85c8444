//go:build !unix

package relay_test

import "testing"

var freezeTests map[string]func(*testing.T) // no SIGSTOP here
