package run

import (
	"testing"
	"testing/synctest"
	"time"
)

// What kills a process does so at once, as a rule; slow innocents must not wait for each other's end.
func TestSuspectsStartApartButDoNotWaitForEachOthersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Runner{}
		first := r.soloRun()
		if first == nil {
			t.Fatal("the first suspect has to wait")
		}
		<-time.After(10 * soloTime) // a slow database
		if r.soloRun() != nil {
			t.Error("a second suspect starts before the handler of the first was called")
		}
		first.begun()
		<-time.After(soloTime - time.Millisecond)
		if r.soloRun() != nil {
			t.Error("a second suspect starts beside one that has just begun")
		}
		<-time.After(2 * time.Millisecond)
		second := r.soloRun()
		if second == nil {
			t.Fatal("a second suspect has to wait for the end of the first")
		}
		first.over() // must not end the second one's solo run
		if r.soloRun() != nil {
			t.Error("the end of the first suspect ended the second one's solo run")
		}
		second.over()
		third := r.soloRun()
		if third == nil {
			t.Fatal("the end of a suspect does not end its solo run")
		}
		third.over()
	})
}
