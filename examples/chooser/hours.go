package main

import (
	"slices"
	"time"

	"github.com/txoutbox/outbox/relay"
)

// hours caps reports at a share of the relay's workers: 80 % from 22 to 6 o'clock, 20 % by day.
// Within the cap the built-in order decides.
type hours struct{ rest relay.Chooser }

var now = time.Now

// Choose implements relay.Chooser.
func (h *hours) Choose(v relay.View) []int {
	reports := slices.IndexFunc(v.Heads, func(head relay.Head) bool { return head.Type == makeReport.Name() })
	if reports < 0 {
		return h.rest.Choose(v)
	}
	percent := 20
	if hour := now().Hour(); hour >= 22 || hour < 6 {
		percent = 80
	}
	head := &v.Heads[reports]
	head.Room = min(head.Room, v.Workers*percent/100-head.Running) // Fair gives nothing where it is below 1
	return h.rest.Choose(v)
}
