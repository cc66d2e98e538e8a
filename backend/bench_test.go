package backend_test

import (
	"testing"
	"time"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/internal/gate"
)

// A whole attempt: it starts, its call ends, and its outcome is reported.
func BenchmarkAttempt(b *testing.B) {
	for _, c := range []struct {
		name   string
		tenant string
		opts   []backend.Option
	}{
		{"limit", "", []backend.Option{backend.Limit(100)}},
		{"adaptive", "", []backend.Option{backend.Adaptive(8, 200)}},
		{"rate", "", []backend.Option{backend.Limit(100), backend.Rate(1e9, time.Second)}},
		{"budget", "", []backend.Option{backend.Limit(100), backend.RetryBudget(0.2)}},
		{"tenant", "shop", []backend.Option{backend.Limit(100), backend.TenantRate(1e9, time.Second)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			seat := gate.Of(backend.New("payments", c.opts...)).Attach(new(operator), gate.Caller{})
			a := gate.Request{Cost: 1, Tenant: c.tenant}
			var o gate.Evidence
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(200)
				answer := seat.Start(now, &a)
				if answer.Wait > 0 {
					b.Fatal(answer)
				}
				seat.Release(answer.Stamp)
				o.Begun, o.Tenant = now, c.tenant
				seat.AttemptEnded(now, &o)
			}
		})
	}
}
