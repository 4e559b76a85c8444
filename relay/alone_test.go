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
		leave, first := r.alone()
		if !first {
			t.Fatal("the first suspect has to wait")
		}
		<-time.After(suspectAlone - time.Millisecond)
		if _, first := r.alone(); first {
			t.Error("a second suspect starts beside one that has just begun")
		}
		<-time.After(2 * time.Millisecond)
		leave2, first := r.alone()
		if !first {
			t.Fatal("a second suspect has to wait for the end of the first")
		}
		leave() // must not let go of the second one's turn
		if _, first := r.alone(); first {
			t.Error("the end of the first suspect ended the second one's turn")
		}
		leave2()
		leave3, first := r.alone()
		if !first {
			t.Error("the end of a suspect does not end its turn")
		}
		leave3()
	})
}
