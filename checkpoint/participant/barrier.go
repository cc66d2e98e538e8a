package participant

import "fmt"

// Kind is the purpose of a [Barrier].
type Kind uint8

const (
	// Periodic is an ordinary checkpoint: the pipeline continues.
	Periodic Kind = iota
	// Drain is the final checkpoint of a stream that ends, taken when all participants
	// have reported the marker of EndOfInput. The barrier is the last element of the
	// stream.
	Drain
	// Suspend is a final checkpoint that holds the elements in flight, to be resumed
	// from. The barrier is the last element of the stream, and operators that it has
	// reached do not start calls.
	Suspend
	// EndOfInput is a marker, not a checkpoint. It is announced once, and only barriers
	// follow it. Participants are not called when its number is completed or aborted.
	//
	// A participant reports the marker, without a state, when all elements before it are
	// done, and passes it on. A source reports it when it sends it. Barriers overtake the
	// marker, so checkpoints continue during the draining. A participant may report a
	// state for each barrier alike. A participant that does not report the marker delays
	// the end forever.
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
// source closes its output after it. A sink reports it when its input is closed.
func (k Kind) Final() bool { return k == Drain || k == Suspend }

// Barrier is the control element that separates the elements of a checkpoint from later
// elements. It travels in the stream. Each participant reports its state when the barrier
// arrives, and passes the barrier on (Chandy and Lamport, as in Flink). Barriers need not
// be aligned: see Topologies in package checkpoint.
//
// A *Barrier in a stream is an ordinary element.
type Barrier struct {
	// ID is the number of the checkpoint, from 1. The marker's number comes from the same
	// sequence.
	ID uint64
	// Kind is the purpose of the barrier.
	Kind Kind

	reporter  Reporter
	reordered bool
}

// Reporter collects the states of a checkpoint. If it has the method Fail of [Host],
// [Barrier.Fail] calls it.
type Reporter interface {
	// Report takes the state of a participant, or an error if it has no state. The state
	// is not changed afterwards. An empty state is State{}. A nil state without an error
	// is refused, except at the marker of EndOfInput. Report is called from any
	// goroutine. It is ignored if the checkpoint or the run has ended.
	Report(id uint64, name string, state State, err error)
}

// NewBarrier returns a barrier whose reports go to r. A pipeline's coordinator makes its
// barriers.
func NewBarrier(id uint64, kind Kind, r Reporter) Barrier {
	return Barrier{ID: id, Kind: kind, reporter: r}
}

// Report reports the state of a participant at this barrier, or an error, which aborts
// the checkpoint but not the pipeline.
func (b Barrier) Report(name string, state State, err error) {
	if b.reporter != nil {
		b.reporter.Report(b.ID, name, state, err)
	}
}

type failer interface {
	Fail(name string, reason error)
}

// Fail ends the run, as [Host.Fail] does, for parts of the pipeline that are not
// registered. It is a no-op for the zero Barrier.
func (b Barrier) Fail(name string, reason error) {
	if r, ok := b.reporter.(failer); ok {
		r.Fail(name, reason)
	}
}

// Reordered returns a copy of b which marks that elements behind it may arrive in another
// order after a restart. An operator that emits in the order of completion passes
// b.Reordered() on.
func (b Barrier) Reordered() Barrier {
	b.reordered = true
	return b
}

// IsReordered reports whether b has passed an operator that changes the order. A step
// that relies on the order after a restart refuses it (law C2).
func (b Barrier) IsReordered() bool { return b.reordered }

func (b Barrier) String() string { return fmt.Sprintf("barrier %d (%v)", b.ID, b.Kind) }
