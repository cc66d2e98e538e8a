package metered

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirflow/weir/predicates/httpretry"
)

type span struct{ from, to time.Duration }

// provider answers calls in this process. It is safe for concurrent use.
type provider struct {
	perSecond float64 // limit of calls; bursts of a quarter second
	latency   time.Duration
	overloads []span // answers are 529
	outage    span   // answers are 503
	limiter   *rate.Limiter
	started   time.Time

	mu    sync.Mutex
	count counts // guarded by mu
}

type counts struct {
	answered  int
	throttled int // 429
	refused   int // 503 and 529
	at        []time.Duration
}

// refusal is the time of a refused call.
const refusal = 5 * time.Millisecond

func newProvider(perSecond float64, latency time.Duration) *provider {
	return &provider{
		perSecond: perSecond, latency: latency, started: time.Now(),
		limiter: rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/4))),
	}
}

// call makes a call. It costs 1 if answered.
func (p *provider) call(ctx context.Context) error {
	now := time.Now()
	since := now.Sub(p.started)
	if contains(p.outage, since) {
		return p.refuse(ctx, &httpretry.StatusError{StatusCode: http.StatusServiceUnavailable})
	}
	for _, o := range p.overloads {
		if contains(o, since) {
			return p.refuse(ctx, &httpretry.StatusError{StatusCode: 529})
		}
	}
	r := p.limiter.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
		return p.refuse(ctx, &httpretry.StatusError{StatusCode: http.StatusTooManyRequests, Delay: wait, HasDelay: true})
	}
	err := sleep(ctx, p.latency)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count.answered++
	p.count.at = append(p.count.at, time.Since(p.started))
	return nil
}

func contains(s span, at time.Duration) bool { return s.from <= at && at < s.to }

func (p *provider) refuse(ctx context.Context, answer *httpretry.StatusError) error {
	p.mu.Lock()
	if answer.StatusCode == http.StatusTooManyRequests {
		p.count.throttled++
	} else {
		p.count.refused++
	}
	p.mu.Unlock()
	err := sleep(ctx, refusal)
	if err != nil {
		return err
	}
	return answer
}

func (p *provider) counts() counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
