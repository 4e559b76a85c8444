package main

// cases are all cases, in the order in which they run.
var cases = []benchCase{
	burndownCase, largeCase, insertCase, defaultsCase, latencyCase, enqueueCase, manyCase,
	heldCase, deadCase, claimCase, memoryCase, randomCase, typesCase, idleCase, walCase, forwardCase,
}

func caseNames() []string {
	var names []string
	for _, c := range cases {
		names = append(names, c.name)
	}
	return names
}
