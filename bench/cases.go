package main

// cases are all cases, in the order in which they run.
func cases() []benchCase {
	return []benchCase{
		burndownCase(), largeCase(), insertCase(), defaultsCase(), mixedCase(), latencyCase(), enqueueCase(), manyCase(),
		heldCase(), stallsCase(), claimCase(), memoryCase(), randomCase(), typesCase(), payloadCase(), idleCase(), walCase(),
	}
}
