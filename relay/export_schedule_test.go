package relay

// Statements of schedules, for the tests of interleavings and of plans.
const (
	DueScheduleSQL   = dueScheduleSQL
	FiredSQL         = firedSQL
	NextFiringSQL    = nextFiringSQL
	PauseScheduleSQL = pauseScheduleSQL
	AddScheduleSQL   = addScheduleSQL
)
