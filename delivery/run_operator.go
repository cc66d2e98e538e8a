package delivery

import (
	"context"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
)

// The optional methods of an [Operator], which the operators of package asyncop have.
type (
	// checksRun is an operator that can refuse a Run before it begins. ctx is the context
	// of Run, which returns the error.
	checksRun interface {
		CheckRun(ctx context.Context) error
	}

	// operatorWithStats is an operator whose numbers a worker reports.
	operatorWithStats interface{ Stats() asyncop.Stats }

	// operatorWithCalls is an operator that can name calls that run on after its end.
	// Outliving returns the ids of their messages, possibly fewer than Stats().Running.
	operatorWithCalls interface {
		operatorWithStats
		Outliving() []string
	}

	// operatorWithGroups is an operator whose groups of failures a worker reports,
	// largest first.
	operatorWithGroups interface{ Groups() []observe.Group }

	// operatorWithBackend is an operator whose Backend may return nil.
	operatorWithBackend interface{ Backend() asyncop.Backend }

	// operatorWithTenants is an operator that reports whether the tenants of its backend
	// are the keys of its messages.
	operatorWithTenants interface{ TenantsAreKeys() bool }

	// endsPurged is an operator that can end the calls of purged messages. EndPurged
	// returns at once.
	endsPurged interface{ EndPurged() }
)

var (
	_ checksRun           = (*asyncop.AsyncWaitOperator[any, any])(nil)
	_ operatorWithStats   = (*asyncop.AsyncWaitOperator[any, any])(nil)
	_ operatorWithCalls   = (*asyncop.AsyncWaitOperator[any, any])(nil)
	_ operatorWithGroups  = (*asyncop.AsyncWaitOperator[any, any])(nil)
	_ operatorWithBackend = (*asyncop.AsyncWaitOperator[any, any])(nil)
	_ operatorWithTenants = (*asyncop.AsyncWaitOperator[any, any])(nil)
	_ endsPurged          = (*asyncop.AsyncWaitOperator[any, any])(nil)
)
