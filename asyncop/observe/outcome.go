package observe

import (
	"fmt"
	"time"

	"github.com/weirflow/weir/predicates"
)

// Outcome describes the end of an attempt.
type Outcome struct {
	Attempt  int               // from 1
	Results  int               // how many
	Err      error             // of the attempt; context.DeadlineExceeded or Canceled if its element ended first
	Reason   predicates.Reason // if a reason-aware strategy has a classifier that names it
	Duration time.Duration     // until the loop noticed its end
	Retry    bool              // another attempt follows
	Delay    time.Duration     // before it
}

// Ending describes the end of an element.
type Ending struct {
	How      EndKind
	Results  int               // emitted
	Err      error             // why it failed or was cut off
	Reason   predicates.Reason // of its last outcome
	Attempts int               // begun, also before a restart
	InDoubt  bool              // an attempt may have taken effect, but the element was not emitted: see TimeoutError.InDoubt
	Queued   time.Duration     // from its slot to its first attempt, or without one to its end
	Total    time.Duration     // from its slot to its end; after a restart, in this run
}

// EndKind is how an element ended.
type EndKind uint8

// Kinds of ends.
const (
	// Emitted means that all its results have left: the body of the loop over
	// asyncop.AsyncWaitOperator.Results has returned from them, Via or To have sent them
	// on, or they are in Out.
	Emitted    EndKind = iota
	Empty              // it did not have a result
	HandedOver         // it failed, and the failure sink took it
	Dropped            // it failed, and was dropped: WithDropOnFailure
	Failed             // it failed, and so did the operator
	Abandoned          // the operator ended first
	Kept               // it is in the final checkpoint, and is called again after a restart
	Discarded          // it came after the operator stopped reading, or its results were not taken by the end
)

var endKinds = [...]string{"emitted", "empty", "handed over", "dropped", "failed", "abandoned", "kept", "discarded"}

func (k EndKind) String() string {
	if int(k) < len(endKinds) {
		return endKinds[k]
	}
	return fmt.Sprintf("EndKind(%d)", uint8(k))
}
