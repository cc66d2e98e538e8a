package participant

import "fmt"

// Kind is the purpose of a [Barrier].
type Kind uint8

const (
	// Periodic is the kind of an ordinary checkpoint: the pipeline continues.
	Periodic Kind = iota
	// Drain is the kind of the final checkpoint of a stream that ends. It is taken when all participants have reported the marker of EndOfInput,
	// so all elements are done. The barrier is the last element of the stream.
	Drain
	// Suspend is the kind of a final checkpoint that holds the elements in flight, to be resumed from. The barrier is the last element of the
	// stream, and operators that it has reached do not start calls.
	Suspend
	// EndOfInput is the kind of a marker, not of a checkpoint. Only barriers follow it. It is announced once. Its number does not belong to a
	// checkpoint: participants are not called when it is completed or aborted.
	//
	// A participant reports it, without a state, when all elements before it are done, and passes it on: a source when it sends it. Barriers
	// overtake it meanwhile, so checkpoints are taken as long as the draining lasts. A participant may treat all barriers alike, and report a
	// state for each. A participant that does not report the marker delays the end forever.
	EndOfInput
)

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

var kindNames = [...]string{"periodic", "drain", "suspend", "end of input"}

// Final reports whether the stream ends with a barrier of this kind: it must be the last element, and a source closes its output after it. A
// sink reports such a barrier when its input is closed.
func (k Kind) Final() bool { return k == Drain || k == Suspend }

// Barrier is the control element that separates the elements of a checkpoint from later elements. It travels in the stream, from the source to
// the sinks. Each participant on its way reports its state of that moment and passes it on (Chandy and Lamport, as in Flink). A pipeline has a
// single source and its branches do not meet, so barriers need not be aligned: see Topologies in package checkpoint.
//
// A Barrier is a value: a *Barrier in a stream is an ordinary element.
type Barrier struct {
	// ID is the number of the checkpoint, from 1. The marker's number comes from the same sequence.
	ID uint64
	// Kind is the purpose of the barrier.
	Kind Kind

	reporter  Reporter
	reordered bool
}

// Reporter collects the states of a checkpoint. A coordinator has a Reporter; tests may bring their own. If it also has the method Fail of
// [Host], [Barrier.Fail] calls that.
type Reporter interface {
	// Report takes the state of a participant, or the reason why it failed to make its state. The state is not changed afterwards. A participant
	// without a state reports an empty state, State{}. A nil state without a reason is an error, except at the marker of EndOfInput. Report is
	// called from any goroutine. A report to a checkpoint or a run that has ended is ignored.
	Report(id uint64, name string, state State, err error)
}

// NewBarrier returns a barrier whose reports go to r. The barriers of a pipeline are made by its coordinator.
func NewBarrier(id uint64, kind Kind, r Reporter) Barrier {
	return Barrier{ID: id, Kind: kind, reporter: r}
}

// Report hands in the state of a participant at this barrier, or the reason why it failed to make its state, which aborts the checkpoint but not
// the pipeline.
func (b Barrier) Report(name string, state State, err error) {
	if b.reporter != nil {
		b.reporter.Report(b.ID, name, state, err)
	}
}

// Fail ends the run, as [Host.Fail] does. It is for a part of the pipeline that is not registered, and so has only the barriers that pass, not a
// host. It is a no-op for the zero Barrier.
func (b Barrier) Fail(name string, reason error) {
	if r, ok := b.reporter.(interface {
		Fail(name string, reason error)
	}); ok {
		r.Fail(name, reason)
	}
}

// Reordered returns b for the steps after an operator that changes the order of elements: elements behind the barrier may arrive in another
// order after a restart. An operator that emits in the order of completion passes b.Reordered() on.
func (b Barrier) Reordered() Barrier {
	b.reordered = true
	return b
}

// IsReordered reports whether b has passed such an operator. A step that relies on the order of its input after a restart refuses it (law C2).
func (b Barrier) IsReordered() bool { return b.reordered }

func (b Barrier) String() string { return fmt.Sprintf("barrier %d (%v)", b.ID, b.Kind) }
