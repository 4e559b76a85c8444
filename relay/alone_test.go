package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

// What kills a process does so at once, as a rule; slow innocents must not wait for each other's end.
func TestSuspectsStartApartButDoNotWaitForEachOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Relay{}
		first := r.alone()
		if first == nil {
			t.Fatal("the first suspect has to wait")
		}
		<-time.After(10 * suspectAlone) // a slow database
		if r.alone() != nil {
			t.Error("a second suspect starts before the handler of the first was called")
		}
		first.begun()
		<-time.After(suspectAlone - time.Millisecond)
		if r.alone() != nil {
			t.Error("a second suspect starts beside one that has just begun")
		}
		<-time.After(2 * time.Millisecond)
		second := r.alone()
		if second == nil {
			t.Fatal("a second suspect has to wait for the end of the first")
		}
		first.over() // must not let go of the second one's turn
		if r.alone() != nil {
			t.Error("the end of the first suspect ended the second one's turn")
		}
		second.over()
		third := r.alone()
		if third == nil {
			t.Fatal("the end of a suspect does not end its turn")
		}
		third.over()
	})
}
