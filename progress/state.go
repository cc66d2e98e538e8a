package progress

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// State is the progress of a job. Fields other than Done are not shown if they are 0 or
// nil.
type State struct {
	Done      int64 // elements that have ended in any way, in earlier runs too
	Failed    int64 // elements of Done that failed in this run: dropped, handed over, or given the results of a fallback
	Total     int64 // all elements, at least approximately; 0 means unknown
	InFlight  int64 // elements in progress
	Retries   int64 // in this run
	LastError error

	LastErrorAge time.Duration // time since the last error; shown from one second on
}

// Of returns the state of an operator's work. Done are elements that it has completed,
// dropped or handed over, including complete elements whose results wait for their turn
// in the order. Failed are elements that were dropped, handed over or rescued by a
// fallback (asyncop.HandleFailure). The caller adds the elements of earlier runs, and the
// total.
func Of(s observe.Stats) State {
	return State{
		Done: s.Completed + s.WaitingToLeave + s.Dropped + s.HandedOver, Failed: s.Dropped + s.HandedOver + s.Rescued, InFlight: s.InFlight - s.WaitingToLeave,
		Retries: s.Retries(), LastError: s.LastError, LastErrorAge: s.LastErrorAge,
	}
}
