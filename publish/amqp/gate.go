package outboxamqp

import "context"

// gate lets lanes send: several at once, or one alone.
type gate struct {
	places chan struct{} // as many as there are lanes
	alone  chan struct{} // of one that takes all places
}

func newGate(lanes int) gate {
	return gate{places: make(chan struct{}, lanes), alone: make(chan struct{}, 1)}
}

// enter waits until the lane may send. ok is false if ctx ends first.
func (g gate) enter(ctx context.Context, alone bool) (leave func(), ok bool) {
	want, taken := 1, 0
	leave = func() {
		for range taken {
			<-g.places
		}
		if alone {
			<-g.alone
		}
	}
	if alone {
		select {
		case g.alone <- struct{}{}:
		case <-ctx.Done():
			return nil, false
		}
		want = cap(g.places)
	}
	for ; taken < want; taken++ {
		select {
		case g.places <- struct{}{}:
		case <-ctx.Done():
			leave()
			return nil, false
		}
	}
	return leave, true
}
