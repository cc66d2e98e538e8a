// Package wait waits on an injected clock.
package wait

import (
	"context"
	"time"

	"github.com/benbjohnson/clock"
)

// For returns nil when d has passed, or the cause of ctx if that ends before.
func For(ctx context.Context, clk clock.Clock, d time.Duration) error {
	timer := clk.Timer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
