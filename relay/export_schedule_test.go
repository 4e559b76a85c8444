package relay

// Statements of schedules, for the tests of interleavings and of plans.
const (
	DueScheduleSQL   = dueScheduleSQL
	FiredSQL         = firedSQL
	LookScheduleSQL  = lookScheduleSQL
	PauseScheduleSQL = pauseScheduleSQL
	AddScheduleSQL   = addScheduleSQL
)
