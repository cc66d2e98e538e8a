package wiring

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
)

// Linked has the node of the type that embeds it, which is a step of weir: an operator, a
// flow, or a source or sink of package checkpoint. It is embedded under an unexported
// name, so users do not see it.
type Linked struct{ node *Node }

// LinkedBy returns the Linked of a step with this node.
func LinkedBy(n *Node) Linked { return Linked{n} }

func (l Linked) linkedBy() *Node { return l.node }

// linkedStep is a type that embeds Linked.
type linkedStep interface{ linkedBy() *Node }

// NodeOf returns the node of a step of weir, or nil if step is another type.
func NodeOf(step any) *Node {
	if s, ok := step.(linkedStep); ok {
		return s.linkedBy()
	}
	return nil
}

// Node is a step of weir in the wiring of a pipeline. Via and To link the nodes of
// neighbouring steps. A step of another library between two steps of weir ends the chain.
//
// Linked nodes send each other three signals, which do not wait behind elements of the
// stream:
//
//   - checkpointed, downstream: a step takes part in checkpoints. Sent at wiring; a next
//     step that cannot pass barriers panics.
//   - failure, upstream: a step has failed or was cancelled. Each step that it reaches
//     ends with a [DownstreamError], which names the failed step.
//   - cut, downstream: a cancelled step has not delivered its results within the grace.
//     Each step that it reaches ends, and gives up elements that its next step does not
//     take.
//
// In the other direction a failure travels in the stream, as a [Failure] behind the last
// element.
//
// The exported fields are written before the first use. The methods are safe for
// concurrent use.
type Node struct {
	Kind    string       // kind of the step in errors, such as "operator" or "flow Map"
	Label   string       // name of the step, or ""
	In, Out reflect.Type // types of elements; nil for a source's In, a sink's Out, and elements of several types

	// DownstreamFailed ends the step because a later step has failed. It must not block.
	// It is nil if the step does not end for that reason.
	DownstreamFailed func(err *DownstreamError)
	// UpstreamCut ends the step because an earlier step was cancelled and cannot deliver.
	// It must not block. It is nil if the step does not end for that reason.
	UpstreamCut func(err error)
	// Refuses is the reason why the step cannot be in a stream with checkpoints, or nil.
	Refuses error
	// KeepsUpstream keeps failures of later steps from earlier steps.
	KeepsUpstream bool

	mu           sync.Mutex // guards the fields below; not held during calls
	upstream     []*Node
	downstream   []*Node
	others       []any // next steps of other libraries
	checkpointed bool
	failure      *DownstreamError // first failure of a later step
	cut          error            // first cut of an earlier step
}

// DownstreamError is the reason why a step of a pipeline has ended: a later step failed
// or was cancelled, so the results of the step are not processed.
type DownstreamError struct {
	Step string // the step that failed: its kind, and its name or the types of its elements, such as `operator "enrich"`
	Err  error  // its error
}

func (e *DownstreamError) Error() string {
	return fmt.Sprintf("a later step has failed: %s: %v", e.Step, e.Err)
}

// Unwrap returns the error of the step that failed.
func (e *DownstreamError) Unwrap() error { return e.Err }

func (n *Node) String() string {
	switch {
	case n.Label != "":
		return fmt.Sprintf("%s %q", n.Kind, n.Label)
	case n.In == nil && n.Out == nil:
		return n.Kind
	case n.In == nil:
		return fmt.Sprintf("%s of %v", n.Kind, n.Out)
	case n.Out == nil:
		return fmt.Sprintf("%s of %v", n.Kind, n.In)
	default:
		return fmt.Sprintf("%s from %v to %v", n.Kind, n.In, n.Out)
	}
}

// MustTake panics if next cannot take the elements of n, or the barriers of a stream with
// checkpoints.
func (n *Node) MustTake(method string, next any) {
	to := NodeOf(next)
	if n.isCheckpointed() {
		mustPass(method, CanPass(next))
		if to != nil {
			mustPass(method, to.Refuses)
		}
	}
	if to != nil {
		mustMatch(method, n, to)
	}
}

// Link records that n sends to next. It panics if the stream has checkpoints and a step
// after next cannot pass barriers.
func (n *Node) Link(method string, next any) {
	to := NodeOf(next)
	if to == nil {
		n.mu.Lock()
		n.others = append(n.others, next)
		n.mu.Unlock()
		return
	}
	n.mu.Lock()
	n.downstream = append(n.downstream, to)
	cut, checkpointed := n.cut, n.checkpointed
	n.mu.Unlock()
	to.mu.Lock()
	to.upstream = append(to.upstream, n)
	failure := to.failure
	to.mu.Unlock()
	if checkpointed {
		mustPass(method, to.MarkCheckpointed())
	}
	if failure != nil && !to.KeepsUpstream {
		n.downstreamFailed(failure)
	}
	if cut != nil {
		to.upstreamCut(cut)
	}
}

func (n *Node) isCheckpointed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checkpointed
}

// MarkCheckpointed records that n and the steps after it receive barriers. It returns an
// error if n or a step after it cannot pass them.
func (n *Node) MarkCheckpointed() error {
	n.mu.Lock()
	before := n.checkpointed
	n.checkpointed = true
	others, downstream := slices.Clone(n.others), slices.Clone(n.downstream)
	n.mu.Unlock()
	if before || n.Refuses != nil {
		return n.Refuses
	}
	for _, next := range others {
		if err := CanPass(next); err != nil {
			return err
		}
	}
	for _, to := range downstream {
		if err := to.MarkCheckpointed(); err != nil {
			return err
		}
	}
	return nil
}

// FailUpstream ends the steps upstream of n, which has failed with err: they end with a
// [DownstreamError]. Only the first call has an effect.
func (n *Node) FailUpstream(err error) {
	n.downstreamFailedIn(&DownstreamError{Step: n.String(), Err: err})
}

// downstreamFailed ends n and the steps upstream of it because a later step has failed.
func (n *Node) downstreamFailed(err *DownstreamError) {
	if n.downstreamFailedIn(err) && n.DownstreamFailed != nil {
		n.DownstreamFailed(err)
	}
}

// downstreamFailedIn records the first failure and passes it on upstream. It returns
// false and has no effect if n has a failure already.
func (n *Node) downstreamFailedIn(err *DownstreamError) (first bool) {
	n.mu.Lock()
	first = n.failure == nil
	if first {
		n.failure = err
	}
	upstream := slices.Clone(n.upstream)
	n.mu.Unlock()
	if !first || n.KeepsUpstream {
		return first
	}
	for _, from := range upstream {
		from.downstreamFailed(err)
	}
	return true
}

// HasDownstream reports whether a step of weir takes the elements of n.
func (n *Node) HasDownstream() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.downstream) > 0
}

// CutDownstream ends the steps downstream of n, which was cancelled with err. Only the
// first call has an effect.
func (n *Node) CutDownstream(err error) {
	for _, to := range n.noteCut(err) {
		to.upstreamCut(err)
	}
}

// upstreamCut ends n and the steps downstream of it.
func (n *Node) upstreamCut(err error) {
	downstream := n.noteCut(err)
	if n.UpstreamCut != nil {
		n.UpstreamCut(err)
	}
	for _, to := range downstream {
		to.upstreamCut(err)
	}
}

// noteCut records a cut and returns the steps to pass it to, or nil if n had a cut
// before.
func (n *Node) noteCut(err error) (downstream []*Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut != nil {
		return nil
	}
	n.cut = err
	return slices.Clone(n.downstream)
}
