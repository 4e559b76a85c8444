//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
)

var (
	runMutants = slices.Concat(loopMutants, edgeMutants)
	mutants    = slices.Concat(runMutants, testMutants)
)

// chosenMutants are those that -mutation names: all, runs, tests, or names with commas.
func chosenMutants(list string) (chosen []mutant, err error) {
	switch list {
	case "all":
		return mutants, nil
	case "runs":
		return runMutants, nil
	case "tests":
		return testMutants, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(mutants, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-mutation: there is no %q; there are all, runs, tests and\n%s", name, mutantHelp())
		}
		chosen = append(chosen, mutants[i])
	}
	return chosen, nil
}

func mutantHelp() string {
	var b strings.Builder
	for _, m := range mutants {
		fmt.Fprintf(&b, "%s (%s)\n", m.name, m.help)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
