package progress

import (
	"time"

	"github.com/weirflow/weir/asyncop/observe"
)

// State is how far a job has come. Fields that are 0 or nil are not shown, except Done.
type State struct {
	Done      int64 // elements that are complete or have ended, in whatever way, including those of earlier runs of the job
	Failed    int64 // of these, failed in this run: dropped, handed over, or given the results of a fallback
	Total     int64 // all elements of the job, at least roughly; 0: not known
	InFlight  int64 // elements under way
	Retries   int64 // so far, in this run
	LastError error // the last error

	LastErrorAge time.Duration // since the last error; shown from a second on
}

// Of returns the state of an operator's work: elements that it has completed, dropped or
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
