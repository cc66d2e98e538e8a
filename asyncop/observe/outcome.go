package observe

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Outcome is how an attempt has ended.
type Outcome struct {
	Attempt  int               // its number, from 1
	Results  int               // how many it has completed with
	Err      error             // or its error; context.DeadlineExceeded or Canceled if its element ended without it
	Reason   predicates.Reason // of the outcome, where a reason-aware strategy has a classifier that names it
	Duration time.Duration     // from its begin until the loop knew of its end
	Retry    bool              // another attempt follows
	Delay    time.Duration     // the back-off before that
}

// Ending is how an element has ended.
type Ending struct {
	How      EndKind
	Results  int               // how many were emitted
	Err      error             // why it failed or was cut off
	Reason   predicates.Reason // of its last outcome
	Attempts int               // begun; those before a restart count
	InDoubt  bool              // an attempt may have taken effect although the element was not emitted: see TimeoutError.InDoubt
	Queued   time.Duration     // from its slot to its first attempt, or to its end if there was none
	Total    time.Duration     // from its slot to its end; after a restart, in this run
}

// EndKind is the way in which an element ended.
type EndKind uint8

// How elements end.
const (
	// Emitted: all its results have left. The body of the loop over asyncop.AsyncWaitOperator.Results has returned from them, Via or To have
	// sent them into the next flow, or they were placed in Out.
	Emitted    EndKind = iota
	Empty              // it had no result
	HandedOver         // it has failed, and the failure sink has taken it
	Dropped            // it has failed, and was dropped: WithDropOnFailure
	Failed             // it has failed, and the operator with it
	Abandoned          // the operator has ended before it did
	Kept               // it is in the final checkpoint, and will be called again
	Discarded          // it came after the operator had stopped reading, or its results were not taken by the end
)

var endKinds = [...]string{"emitted", "empty", "handed over", "dropped", "failed", "abandoned", "kept", "discarded"}

func (k EndKind) String() string {
	if int(k) < len(endKinds) {
		return endKinds[k]
	}
	return fmt.Sprintf("EndKind(%d)", uint8(k))
}
