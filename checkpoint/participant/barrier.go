package participant

import "fmt"

// Kind is what a [Barrier] is for.
type Kind uint8

const (
	// Periodic is the kind of an ordinary checkpoint: the pipeline goes on.
	Periodic Kind = iota
	// Drain is the kind of the final checkpoint of a stream that ends. It is taken when all participants have reported the
	// marker of EndOfInput, so nothing is in flight. Nothing follows the barrier.
	Drain
	// Suspend is the kind of a final checkpoint that holds what is in flight, to be resumed from. Nothing follows the barrier,
	// and operators that it has reached begin nothing new.
	Suspend
	// EndOfInput is the kind of a marker and of no checkpoint: no element follows it, barriers do. It is announced once. Its
	// number is not that of a checkpoint: participants are not called when it is completed or aborted.
	//
	// A participant reports it, without a state, when all that came before it is done, and passes it on: a source when it
	// sends it. Barriers overtake it meanwhile, so checkpoints are taken as long as the draining lasts. A participant that
	// treats all barriers alike, with a state each, does right. One that does not report the marker holds up the end.
	EndOfInput
)

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

var kindNames = [...]string{"periodic", "drain", "suspend", "end of input"}

// Final reports whether the stream ends with a barrier of this kind: nothing may follow it, and a source closes its output
// after it. A sink reports such a barrier when its input is closed.
func (k Kind) Final() bool { return k == Drain || k == Suspend }

// Barrier is the control element that separates what belongs to a checkpoint from what follows it. It travels in the stream,
// from the source to the sinks. Each participant on its way reports its state of that moment and passes it on (Chandy and
// Lamport, as in Flink). A pipeline has one source and its branches do not meet, so barriers need not be aligned: see
// Topologies in package checkpoint.
//
// A Barrier is a value: a *Barrier in a stream is an ordinary element.
type Barrier struct {
	// ID is the number of the checkpoint, from 1. The marker has a number of the same row.
	ID uint64
	// Kind is what the barrier is for.
	Kind Kind

	reporter  Reporter
	reordered bool
}

// Reporter collects the states of a checkpoint. A coordinator has one; tests may bring their own. One that also has the
// method Fail of [Host] gets what [Barrier.Fail] is called with.
type Reporter interface {
	// Report takes the state of a participant, or the reason why it has none. The state is not changed afterwards. A
	// participant that has nothing to remember reports an empty state, State{}. A nil state without a reason is an error,
	// except at the marker of EndOfInput. Report is called from any goroutine. A report to a checkpoint or a run that has
	// ended is ignored.
	Report(id uint64, name string, state State, err error)
}

// NewBarrier returns a barrier whose reports go to r. The barriers of a pipeline are made by its coordinator.
func NewBarrier(id uint64, kind Kind, r Reporter) Barrier {
	return Barrier{ID: id, Kind: kind, reporter: r}
}

// Report hands in the state of a participant at this barrier, or the reason why it has none, which aborts the
// checkpoint but not the pipeline.
func (b Barrier) Report(name string, state State, err error) {
	if b.reporter != nil {
		b.reporter.Report(b.ID, name, state, err)
	}
}

// Fail ends the run, as [Host.Fail] does. It is for a part of the pipeline that is not registered, so it has no host; it has only
// the barriers that pass. The zero Barrier has no run to end, and does nothing.
func (b Barrier) Fail(name string, reason error) {
	if r, ok := b.reporter.(interface {
		Fail(name string, reason error)
	}); ok {
		r.Fail(name, reason)
	}
}

// Reordered returns b for what follows an operator that changes the order of elements: those behind the barrier may come in
// another order after a restart. An operator that emits in the order of completion passes this one on.
func (b Barrier) Reordered() Barrier {
	b.reordered = true
	return b
}

// IsReordered reports whether b has passed such an operator. What relies on the order of its input after a restart refuses it
// (law C2).
func (b Barrier) IsReordered() bool { return b.reordered }

func (b Barrier) String() string { return fmt.Sprintf("barrier %d (%v)", b.ID, b.Kind) }
