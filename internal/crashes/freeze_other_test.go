//go:build !unix

package crashes_test

import "testing"

var freezeTests map[string]func(*testing.T) // no SIGSTOP here
