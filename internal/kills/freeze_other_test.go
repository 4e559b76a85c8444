//go:build !unix

package kills_test

import "testing"

var freezeTests map[string]func(*testing.T) // no SIGSTOP here
