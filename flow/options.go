package flow

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/internal/guard"
)

// Option changes a setting of a [Flow] or a [Sink]. Options panic if a value is invalid.
type Option func(*config)

// errSinkBarriers is the error of a Sink in a stream with checkpoints.
var errSinkBarriers = errors.New("flow.Sink cannot take part in checkpoints: use checkpoint.NewSink")

// config holds the settings of a flow or a sink. It is read-only once that runs.
type config struct {
	name           string
	cancelUpstream context.CancelCauseFunc // may be nil
	keepsUpstream  bool
}

func newConfig(opts []Option) (c config) {
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("flow: option %d is nil", i))
		}
		opt(&c)
	}
	return c
}

// WithName names the flow in logs and in the errors of upstream steps
// (asyncop.DownstreamError). By default the types of its elements identify it.
func WithName(name string) Option {
	return func(c *config) { c.name = name }
}

// WithUpstreamCancel makes the flow call cancel once when it fails, or ends because a
// later step has failed, with the error as the cause. cancel should end the source, which
// closes In in turn. It is called on a goroutine of its own, so it may wait for the
// source. By default elements that a source sends to a flow that has failed are discarded
// and counted. It is the same option as asyncop.WithUpstreamCancel. It panics if cancel
// is nil.
func WithUpstreamCancel(cancel context.CancelCauseFunc) Option {
	guard.RefuseNil("flow: WithUpstreamCancel", "function", cancel)
	return func(c *config) { c.cancelUpstream = cancel }
}

// WithUpstreamRunning keeps the steps upstream running when the flow fails. Their results
// are discarded and counted. By default operators and flows of weir before it end with an
// asyncop.DownstreamError. It is the same option as asyncop.WithUpstreamRunning.
func WithUpstreamRunning() Option {
	return func(c *config) { c.keepsUpstream = true }
}
