package main

// versus is one comparison with River that the report shows, also where River is better.
type versus struct {
	Case, What, Metric string
	Ours, River        string
	Less               bool // is better
}

func comparisons() []versus {
	var all []versus
	add := func(caseName, what, metric, ours, river string, less bool) {
		all = append(all, versus{caseName, what, metric, ours, river, less})
	}
	for _, ours := range []string{sideBatch, sideLeased, sideTx} {
		add(caseBurndown, "no-op: "+ours, mRate, ours, sideRiverBench, false)
		add(caseBurndown, "no-op: "+ours, mCPU, ours, sideRiverBench, true)
	}
	add(caseInsert, "one insert: Tx, 10 workers", mRate, sideInsertTx10, sideInsertRiver10, false)
	add(caseInsert, "one insert: Tx, 50 workers", mRate, sideInsertTx50, sideInsertRiver50, false)
	add(caseInsert, "one insert: Tx, GroupCommit(8)", mRate, sideGroup8, sideInsertRiver10, false)
	add(caseInsert, "one insert: Tx, GroupCommit(32)", mRate, sideGroup32, sideInsertRiver10, false)
	add(caseInsert, "one insert: Complete", mRate, sideComplete, sideInsertRiver10, false)
	add(caseInsert, "one insert: Batch", mRate, sideInsertBatch, sideInsertRiver50, false)
	for _, ours := range []string{sideDefaultTx, sideDefaultBatch, sideDefaultLeased} {
		add(caseDefaults, "defaults: "+ours, mRate, ours, sideDefaultRiver, false)
	}
	for _, ours := range []string{sideDefaultTx100, sideDefaultBatch100, sideDefaultLeased100} {
		add(caseDefaults, "defaults: "+ours, mRate, ours, sideDefaultRiver100, false)
	}
	for _, metric := range []string{mP50, mP99} {
		add(caseLatency, "pickup across processes, both at defaults", metric, sideAcross, sideRiverDefaults, true)
		add(caseLatency, "pickup across processes, River at its benchmark's settings", metric, sideAcross, sideRiverBench,
			true)
	}
	add(caseEnqueue, "one task a transaction", mSpeed, sideEnqueue, sideRiverTx, false)
	add(caseEnqueue, "one task a transaction, both on pgx", mSpeed, sideEnqueuePgx, sideRiverTx, false)
	add(caseMany, "5,000 a call", mRate, sideMany, sideRiverFast, false)
	for _, ours := range []string{sideWALBatch, sideWALTx, sideWALLeased} {
		add(caseWAL, ours, mWAL, ours, sideWALRiver, true)
	}
	return all
}
