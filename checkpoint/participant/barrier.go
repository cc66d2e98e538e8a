package participant

import "fmt"

// Kind is the purpose of a [Barrier].
type Kind uint8

const (
	// Periodic is the kind of an ordinary checkpoint: the pipeline continues.
	Periodic Kind = iota
	// Drain is the kind of the final checkpoint of a stream that ends. It is taken when
	// all participants have reported the marker of EndOfInput, so all elements are done.
	// The barrier is the last element of the stream.
	Drain
	// Suspend is the kind of a final checkpoint that holds the elements in flight, to be
	// resumed from. The barrier is the last element of the stream, and operators that it
	// has reached do not start calls.
	Suspend
	// EndOfInput is the kind of a marker, not of a checkpoint. Only barriers follow it.
	// It is announced once. Its number does not belong to a checkpoint: participants are
	// not called when it is completed or aborted.
	//
	// A participant reports the marker, without a state, when all elements before it are
	// done, and passes it on. A source reports it when it sends it. Barriers overtake the
	// marker meanwhile, so checkpoints are taken as long as the draining lasts. A
	// participant may treat all barriers alike, and report a state for each. A
	// participant that does not report the marker delays the end forever.
	EndOfInput
)

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

var kindNames = [...]string{"periodic", "drain", "suspend", "end of input"}

// Final reports whether a barrier of this kind is the last element of the stream. A
// source closes its output after a final barrier. A sink reports the barrier when its
// input is closed.
func (k Kind) Final() bool { return k == Drain || k == Suspend }

// Barrier is the control element that separates the elements of a checkpoint from later
// elements. It travels in the stream, from the source to the sinks. Each participant
// reports its state when the barrier arrives, and passes the barrier on (Chandy and
// Lamport, as in Flink). A pipeline has a single source and its branches do not meet, so
// barriers need not be aligned: see Topologies in package checkpoint.
//
// A Barrier is a value: a *Barrier in a stream is an ordinary element.
type Barrier struct {
	// ID is the number of the checkpoint, from 1. The marker's number comes from the same
	// sequence.
	ID uint64
	// Kind is the purpose of the barrier.
	Kind Kind

	reporter  Reporter
	reordered bool
}

// Reporter collects the states of a checkpoint. A coordinator provides it; tests may use
// their own. If it also has the method Fail of [Host], [Barrier.Fail] calls that.
type Reporter interface {
	// Report takes the state of a participant, or the reason why it has no state. The
	// state is not changed afterwards. An empty state is State{}. A nil state without a
	// reason is an error, except at the marker of EndOfInput. Report is called from any
	// goroutine. A report to a checkpoint or a run that has ended is ignored.
	Report(id uint64, name string, state State, err error)
}

// NewBarrier returns a barrier whose reports go to r. The barriers of a pipeline are made
// by its coordinator.
func NewBarrier(id uint64, kind Kind, r Reporter) Barrier {
	return Barrier{ID: id, Kind: kind, reporter: r}
}

// Report reports the state of a participant at this barrier, or the reason why it has no
// state, which aborts the checkpoint but not the pipeline.
func (b Barrier) Report(name string, state State, err error) {
	if b.reporter != nil {
		b.reporter.Report(b.ID, name, state, err)
	}
}

// failer is a Reporter that can end the run.
type failer interface {
	Fail(name string, reason error)
}

// Fail ends the run, as [Host.Fail] does. It is for a part of the pipeline that is not
// registered and so does not have a Host. It is a no-op for the zero Barrier.
func (b Barrier) Fail(name string, reason error) {
	if r, ok := b.reporter.(failer); ok {
		r.Fail(name, reason)
	}
}

// Reordered returns a copy of b that marks a change of the order of elements: elements
// behind the barrier may arrive in another order after a restart. An operator that emits
// in the order of completion passes b.Reordered() on.
func (b Barrier) Reordered() Barrier {
	b.reordered = true
	return b
}

// IsReordered reports whether b has passed an operator that changes the order of
// elements. A step that relies on the order of its input after a restart refuses it (law
// C2).
func (b Barrier) IsReordered() bool { return b.reordered }

func (b Barrier) String() string { return fmt.Sprintf("barrier %d (%v)", b.ID, b.Kind) }
