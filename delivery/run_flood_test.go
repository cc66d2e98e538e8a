package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// line is an element whose call may happen twice.
type line struct{ N int }

func (line) Idempotent() bool { return true }

// worked is the result of a worker of TestRunWithABadBatch.
type worked struct {
	summary delivery.Summary
	done    []time.Duration // when the good messages were done, since the beginning
	dead    int
}

// workLines runs a worker over n messages, of which each ninth waits in a layer, up to
// waits of them. It works until the good messages are done, for an hour at most. Calls of
// f run one at a time.
func workLines(t *testing.T, n, good int, strategy strategies.Retry[string], waits int, f func(n int) error) (w worked) {
	t.Helper()
	begun := time.Now()
	s := memory.Open()
	lines := delivery.NewQueue[line](s, "lines", delivery.RetryAfter(time.Minute, 10*time.Minute))
	for i := range n {
		m, err := leases.Encode(codec.JSON[line](), line{i}, message.Meta{ID: fmt.Sprint(i)})
		require.NoError(t, err)
		queue := "lines"
		if i%9 == 0 && i/9 < waits {
			queue, m.Meta.Visit = "lines-retry-1", 1
		}
		require.NoError(t, s.Put(t.Context(), queue, m))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var mu sync.Mutex
	call := func(_ context.Context, l line) (string, error) {
		time.Sleep(20 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		return "done", f(l.N)
	}
	sink := sinkFunc(func(_ context.Context, ms []message.Message[string]) error {
		for range ms {
			w.done = append(w.done, time.Since(begun))
		}
		if len(w.done) == good {
			cancel()
		}
		return nil
	})
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(call), 10*time.Second, 50, strategy, asyncop.WithFailureSink(lines.TakeFailure), asyncop.WithLogger(quiet))
	var err error
	w.summary, err = delivery.Run(ctx, lines, op, sink, silently)
	require.NoError(t, err)
	counts, err := lines.Counts(t.Context())
	require.NoError(t, err)
	w.dead = counts.Dead
	return w
}

var (
	errUnprocessable = &httpretry.StatusError{StatusCode: 422}
	ofHTTP           = strategies.ReasonAware(httpretry.Classifier[string](), nil)
	ofNothing        = strategies.FixedDelay[string](3, 100*time.Millisecond).RetryIfException(func(error) bool { return false })
	errDeclined      = predicates.WithReason(errors.New("no"), predicates.NewRejection("NO"))
)

// A batch of messages that the service refuses is not an outage: it does not delay the
// good messages behind it.
func TestRunWithABadBatch(t *testing.T) {
	const bad, good = 1000, 120
	for name, c := range map[string]struct {
		strategy strategies.Retry[string]
		err      error
		floods   bool
		within   time.Duration
	}{
		"422, and a classifier":     {ofHTTP, errUnprocessable, false, 10 * time.Second},
		"a rejection":               {ofNothing, errDeclined, false, 10 * time.Second},
		"something that is unknown": {ofNothing, errors.New("422"), true, 16 * time.Minute}, // ten calls each five seconds, half of them for messages of layers
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := workLines(t, bad+good, good, c.strategy, 0, func(n int) error {
					if n < bad {
						return c.err
					}
					return nil
				})
				require.Len(t, w.done, good)
				require.Less(t, w.done[good-1], c.within)
				require.Equal(t, c.floods, w.summary.Floods > 0, w.summary)
				if !c.floods {
					require.Equal(t, bad, w.dead)
				}
			})
		})
	}
}

// A message from a layer has failed before, so it shows little about the service:
// yesterday's poison does not delay today's messages.
func TestRunWithPoisonThatComesBack(t *testing.T) {
	const n, poison = 2700, 300
	for name, waits := range map[string]int{"at its first visit": 0, "at its second visit": poison} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := workLines(t, n, n-poison, ofNothing, waits, func(n int) error {
					if n%9 == 0 {
						return errors.New("poison")
					}
					return nil
				})
				require.Len(t, w.done, n-poison)
				require.Less(t, w.done[n/2], time.Second)
				require.Less(t, w.done[n-poison-1], 2*time.Second)
				require.Zero(t, w.summary.Floods)
			})
		})
	}
}

// In an outage almost all messages stay in the queue. After it, the worker continues
// within seconds.
func TestRunInAnOutage(t *testing.T) {
	for name, jobs := range map[string]func(n int) error{
		"nothing else": func(int) error { return nil },
		"some poison": func(n int) error {
			if n%100 == 0 {
				return errUnprocessable
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n, outage = 20_000, 10 * time.Minute
				begun := time.Now()
				good := 0
				for i := range n {
					if jobs(i) == nil {
						good++
					}
				}
				var again time.Duration // the first success after the outage
				w := workLines(t, n, good, ofHTTP, 0, func(n int) error {
					at := time.Since(begun)
					if at > time.Second && at < time.Second+outage {
						return &httpretry.StatusError{StatusCode: 503}
					}
					if err := jobs(n); err != nil {
						return err
					}
					if at > time.Second && again == 0 {
						again = at - time.Second - outage
					}
					return nil
				})
				require.Len(t, w.done, good)
				require.Equal(t, 1, w.summary.Floods)
				require.Less(t, w.summary.HandedOver, n-good+250+10*120, "of 20,000: what was in the worker, and ten each five seconds")
				require.LessOrEqual(t, again, 5*time.Second+100*time.Millisecond)
				require.Zero(t, w.dead-(n-good), "dead letters, beside the poison")
			})
		})
	}
}

// Law D5: when most messages fail, the worker stops, and leaves the others where they
// are. It tries several, after a second and then after longer pauses, of five seconds at
// most.
func TestRunProbesWithSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var failedAt []time.Duration
		op := operator(func(ctx context.Context, i int) (string, error) {
			if at := time.Since(begun); i >= 500 && at < 20*time.Second {
				failedAt = append(failedAt, at)
				return "", errors.New("the provider is down")
			}
			return itoa(ctx, i)
		}, asyncop.WithMaxConcurrentCalls(1))
		var log bytes.Buffer
		summary, err := delivery.Run(t.Context(), newList(2000, false), op, &collected{}, delivery.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		require.Equal(t, 1, summary.Floods)
		require.Equal(t, 2000-summary.HandedOver, summary.Done)
		require.Contains(t, log.String(), "the provider is down")
		require.Contains(t, log.String(), "the worker resumes")
		probes := map[time.Duration]int{}
		for _, at := range failedAt {
			probes[at.Round(time.Second)]++
		}
		delete(probes, 0)
		require.Len(t, probes, 5)
		var at []time.Duration
		for d, n := range probes {
			at = append(at, d)
			require.Equal(t, 10, n)
		}
		slices.Sort(at)
		require.Equal(t, []time.Duration{1 * time.Second, 3 * time.Second, 7 * time.Second, 12 * time.Second, 17 * time.Second}, at)
		require.Equal(t, 22*time.Second, summary.Elapsed.Round(time.Second))
	})
}

// Regression: a released message shows nothing about the service, and its block never
// ended. So the pauses stayed at five seconds after an outage, and the next outage, days
// later, began with such a pause.
func TestWithFloodGuard_PauseAfterReleasedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second, resumed time.Time // of the failed calls of two outages, and of the call after them
		snoozed := map[int]bool{}
		op := operator(func(ctx context.Context, i int) (string, error) {
			now := time.Now()
			switch {
			case i == 200:
				first = now
			case i == 1500:
				second = now
			}
			isDown := i >= 200 && now.Sub(first) < 20*time.Second || i >= 1500 && now.Sub(second) < time.Second/2
			if isDown {
				return "", errors.New("the provider is down")
			}
			if i%50 == 0 && !snoozed[i] {
				snoozed[i] = true
				return "", predicates.WithSnooze(errors.New("later"), time.Hour)
			}
			if i > 1500 && resumed.IsZero() {
				resumed = now
			}
			return itoa(ctx, i)
		}, asyncop.WithMaxConcurrentCalls(1))
		summary, err := delivery.Run(t.Context(), newList(2000, false), op, &collected{}, silently)
		require.NoError(t, err)
		require.Equal(t, 2, summary.Floods)
		require.NotZero(t, summary.Released)
		require.Equal(t, time.Second, resumed.Sub(second).Round(time.Second/10))
	})
}
