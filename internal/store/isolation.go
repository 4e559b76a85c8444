package store

// Isolation says beside which others a task may run in its process. The more of its runs were lost
// in a row, the more likely it is the one that ends the process. A run that its process outlives
// ends the row.
type Isolation int

const (
	NotLost     Isolation = iota
	LostOnce              // beside all but a LastAttempt
	Grouped               // lost twice: beside a few such
	Alone                 // lost three times, or two attempts are left: beside none that was lost twice
	LastAttempt           // one attempt is left: beside none that was lost
)

func (i Isolation) String() string {
	return [...]string{"none", "none", "group", "alone", "alone"}[i]
}

// isolationOf is that of a task of which so many runs in a row were lost, with so many attempts
// left.
func isolationOf(lost, left int) Isolation {
	switch {
	case lost == 0:
		return NotLost
	case left <= 1:
		return LastAttempt
	case lost >= 3 || left == 2:
		return Alone
	case lost == 2:
		return Grouped
	}
	return LostOnce
}
