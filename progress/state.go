package progress

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// State is the progress of a job. Fields that are 0 or nil are not shown, except Done.
type State struct {
	Done      int64 // elements that are complete or have ended in any way, including elements of earlier runs
	Failed    int64 // elements of Done that failed in this run: dropped, handed over, or given the results of a fallback
	Total     int64 // all elements of the job, at least approximately; 0 means unknown
	InFlight  int64 // elements in progress
	Retries   int64 // number of retries in this run
	LastError error // the last error

	LastErrorAge time.Duration // time since the last error; shown if at least a second
}

// Of returns the state of an operator's work. Elements that it has completed, dropped or
// handed over are done, and so are complete elements whose results wait for their turn in
// the order. Failed counts the elements that were dropped, handed over or rescued by a
// fallback (asyncop.HandleFailure). The caller adds the elements of earlier runs, and the
// total.
func Of(s observe.Stats) State {
	return State{
		Done: s.Completed + s.WaitingToLeave + s.Dropped + s.HandedOver, Failed: s.Dropped + s.HandedOver + s.Rescued, InFlight: s.InFlight - s.WaitingToLeave,
		Retries: s.Retries(), LastError: s.LastError, LastErrorAge: s.LastErrorAge,
	}
}
