package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/internal/wait"
)

// ErrCallsRun is matched by the error of [Run] if calls run after its return, although
// their contexts have ended. Its text has their number, and the ids of up to ten
// messages. Do not close what these calls use.
var ErrCallsRun = errors.New("calls still run")

const (
	lookAtCalls = 10 * time.Millisecond // between two looks at the running calls
	maxNamed    = 10                    // messages in an error's text
)

// awaitCalls waits for calls that run after the end of the operator: for closeWait, or
// until 2·closeWait after the end of their contexts, if that is earlier. It returns an
// error that names the calls that run even then.
func (w *worker[IN, OUT]) awaitCalls() error {
	op, ok := w.op.(operatorWithCalls)
	if !ok {
		return nil
	}
	limit := w.clock.Now().Add(closeWait)
	if cut := w.cutAt.Load(); cut != nil && cut.Add(2*closeWait).Before(limit) {
		limit = cut.Add(2 * closeWait)
	}
	for {
		running := int(op.Stats().Running)
		if running == 0 {
			return nil
		}
		if !w.clock.Now().Before(limit) {
			return callsRunError(running, op.Outliving())
		}
		err := wait.For(context.Background(), w.clock, lookAtCalls)
		if err != nil {
			return err
		}
	}
}

// callsRunError names running calls. ids may have fewer messages than there are calls.
func callsRunError(running int, ids []string) error {
	if len(ids) == 0 {
		return fmt.Errorf("delivery: %w after the end of their contexts: %d", ErrCallsRun, running)
	}
	named := ids[:min(len(ids), maxNamed)]
	return fmt.Errorf("delivery: %w after the end of their contexts: %d, for messages such as %q: make their functions return when their contexts end",
		ErrCallsRun, running, named)
}
