package flow

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/internal/guard"
)

// Option changes a setting of a [Flow] or a [Sink]. Options panic for invalid values.
type Option func(*config)

var errSinkBarriers = errors.New("flow.Sink cannot take part in checkpoints: use checkpoint.NewSink")

// config is read-only once its flow or sink runs.
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

// WithName names the flow in logs and in errors of upstream steps
// (asyncop.DownstreamError). Default: the types of its elements.
func WithName(name string) Option {
	return func(c *config) { c.name = name }
}

// WithUpstreamCancel makes the flow call cancel once when it or a later step fails, with
// the error as the cause. cancel should end the source, which closes In in turn. It is
// called on its own goroutine, so it may wait for the source. By default elements sent to
// a failed flow are discarded and counted. It is the same as asyncop.WithUpstreamCancel.
// It panics if cancel is nil.
func WithUpstreamCancel(cancel context.CancelCauseFunc) Option {
	guard.RefuseNil("flow: WithUpstreamCancel", "function", cancel)
	return func(c *config) { c.cancelUpstream = cancel }
}

// WithUpstreamRunning keeps the steps upstream running when the flow fails. Their results
// are discarded and counted. By default operators and flows of weir before it end with an
// asyncop.DownstreamError. It is the same as asyncop.WithUpstreamRunning.
func WithUpstreamRunning() Option {
	return func(c *config) { c.keepsUpstream = true }
}
