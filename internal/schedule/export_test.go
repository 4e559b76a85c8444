package schedule

// EndRests lets the schedules be tried again that rest.
func (s *Scheduler) EndRests() { clear(s.rests) }
