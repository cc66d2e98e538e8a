package progress

import "github.com/weirflow/weir/asyncop/observe"

// State is how far a job has come. What is 0 or nil is not shown, but for Done.
type State struct {
	Done      int64 // what came out, one way or another; with what earlier runs of the job have done
	Total     int64 // what there is to do, or about; 0: not known
	InFlight  int64 // what is under way
	Retries   int64 // so far, in this run
	LastError error // the last trouble
}

// Of returns the state of an operator's work: what it has completed, dropped or handed over is done. The caller adds what earlier
// runs have done, and the total.
func Of(s observe.Stats) State {
	return State{
		Done: s.Completed + s.Dropped + s.HandedOver, InFlight: s.InFlight, Retries: s.Retries(), LastError: s.LastError,
	}
}
