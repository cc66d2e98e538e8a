package checkpoint

import "fmt"

// Kind says what a checkpoint is for.
type Kind uint8

const (
	// Periodic is an ordinary checkpoint: the pipeline goes on.
	Periodic Kind = iota
	// Drain is the final checkpoint of a stream that ends: everything before its barrier is finished first, so nothing
	// is in flight in it. It is taken when all participants have reported the marker of EndOfInput. Nothing follows the
	// barrier.
	Drain
	// Suspend is a final checkpoint with what is in flight in it, to be resumed from. Nothing follows the barrier, and
	// operators that it has reached begin nothing new.
	Suspend
	// EndOfInput is no checkpoint but the marker of a stream that is to be drained: no element follows it, barriers do.
	// It is announced once, and its number is not that of a checkpoint: nobody is told that it is completed or aborted.
	//
	// Whoever passes it on has finished what came before it, while barriers go on overtaking, so checkpoints are taken as
	// long as the draining lasts. Everybody reports it, without a state: a source when it sends it, others when all
	// before it is done. A participant that treats all barriers alike, with a state each, does that too; one that reports
	// none holds up the end.
	EndOfInput
)

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

var kindNames = [...]string{"periodic", "drain", "suspend", "end of input"}

// Final tells whether the stream ends with a barrier of this kind: nothing may follow it, and a source closes its output
// after it. A [Sink] reports it when its input is closed.
func (k Kind) Final() bool { return k == Drain || k == Suspend }

// Barrier is the control element that separates what belongs to a checkpoint from what follows it. It travels in band
// from the sources to the sinks; every participant on its way reports its state of that moment and passes it on
// (Chandy and Lamport, as in Flink). A pipeline has one source and its branches do not meet, so nothing needs to be aligned: see Topologies in the
// package documentation.
//
// A Barrier is a value: a *Barrier in a stream is an ordinary element.
type Barrier struct {
	// ID is the number of the checkpoint, from 1, or that of the marker in the same row.
	ID uint64
	// Kind is what the checkpoint is for.
	Kind Kind

	reporter Reporter
}

// Reporter collects the states of a checkpoint. The coordinator is one; tests may bring their own.
type Reporter interface {
	// Report takes the state of a participant, or the reason why it has none. The state is not changed afterwards. A
	// participant that has nothing to remember reports an empty state, State{}: a nil one without a reason is an error,
	// except at the marker of EndOfInput. It is called from any goroutine; a report to a checkpoint or a run that has
	// ended is ignored.
	Report(id uint64, participant string, state State, err error)
}

// NewBarrier returns a barrier whose reports go to r. A pipeline's barriers are made by its [Coordinator].
func NewBarrier(id uint64, kind Kind, r Reporter) Barrier {
	return Barrier{ID: id, Kind: kind, reporter: r}
}

// Report hands in the state of a participant at this barrier, or the reason why it has none, which aborts the
// checkpoint but not the pipeline.
func (b Barrier) Report(participant string, state State, err error) {
	if b.reporter != nil {
		b.reporter.Report(b.ID, participant, state, err)
	}
}

func (b Barrier) String() string { return fmt.Sprintf("barrier %d (%v)", b.ID, b.Kind) }
