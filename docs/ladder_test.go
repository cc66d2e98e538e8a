package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// The delays of the page are minutes; here a minute is a millisecond.
const minute = time.Millisecond

func newQueue(engine store.Engine) *delivery.Queue[sale] {
	return delivery.NewQueue[sale](engine, "sales", delivery.WithLayers(
		delivery.Layer{Delay: minute, Jitter: 0.2},
		delivery.Layer{Delay: 10 * minute, Rate: 50, MaxConcurrent: 20},
	))
}

// until ends a loop over messages when so many sales have ended.
func until(n int32, queue *delivery.Queue[sale], ended *atomic.Int32, cancel context.CancelFunc) func(ctx context.Context, f asyncop.Failure[sale]) error {
	return func(ctx context.Context, f asyncop.Failure[sale]) error {
		meta, _ := message.MetaFromContext(ctx)
		err := queue.TakeFailure(ctx, f)
		if err == nil && meta.Visit == 3 && ended.Add(1) == n {
			cancel()
		}
		return err
	}
}

func Example_ladder() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	engine := memory.Open()
	queue := newQueue(engine)
	sales := make(chan sale, 3)
	sales <- sale{"sale-1", 100}
	sales <- sale{"sale-2", 200}
	sales <- sale{"sale-3", 300}
	source := queue.Source(channel.NewSource(sales, func(s sale) *message.Meta { return &message.Meta{ID: s.ID} }))
	sell := asyncop.Blocking(func(ctx context.Context, s sale) (receipt, error) {
		meta, _ := message.MetaFromContext(ctx)
		if s.ID == "sale-2" && meta.Visit < 2 || s.ID == "sale-3" {
			return "", errBusy
		}
		return receipt(s.ID), nil
	})
	var ended atomic.Int32
	op := asyncop.UnorderedWaitWithRetry(sell, time.Minute, 1000,
		strategies.PolicyOf(
			strategies.ExponentialBackoff[receipt](3, 100*time.Millisecond, time.Hour, 10).
								RetryIfException(predicates.ErrorIs(errBusy))).
			WithMaxDelay(10*time.Millisecond). // longer waits leave the operator
			WithMaxWaiting(500),               // and so do failed elements while half of the slots wait
		asyncop.WithFailureSink(until(3, queue, &ended, cancel)))
	for m, err := range op.Messages(receive(ctx, source)) {
		if err != nil {
			break
		}
		fmt.Println("sold", m.Value, "at visit", m.Meta().Visit)
		m.Ack()
		if ended.Add(1) == 3 {
			cancel()
		}
	}
	_ = source.Close(context.Background())
	letters, err := engine.List(context.Background(), queue.DeadLetters(), store.Filter{}, store.Page{Max: 10})
	for _, letter := range letters {
		fmt.Println("dead:", letter.Meta.ID, letter.Cause, letter.Meta.Visit, letter.Meta.LastError, err)
	}
	// Unordered output:
	// sold sale-1 at visit 1
	// sold sale-2 at visit 2
	// dead: sale-3 exhausted 3 busy <nil>
}

// lossy loses the first answer to each request.
type lossy struct {
	http.RoundTripper
	calls atomic.Int32
}

func (l *lossy) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(req)
	if err == nil && l.calls.Add(1) == 1 {
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

func Example_ladderInDoubt() {
	var charges atomic.Int32
	results := server.NewResults(server.Config{AnswerAge: 24 * time.Hour})
	service := httptest.NewServer(results.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { charges.Add(1) }),
		server.HandlerConfig{Scope: func(*http.Request) (string, bool) { return "shop", true }, Required: true}))
	defer service.Close()
	defer results.Close(context.Background())

	queue := delivery.NewQueue[sale](memory.Open(), "sales",
		delivery.RetryAfter(minute),
		delivery.WithIdempotencyWindow(23*time.Hour)) // the service keeps its answers for a day
	client := &http.Client{Transport: caller.Transport(&lossy{RoundTripper: service.Client().Transport}, service.URL+"/")}
	charge := asyncop.Blocking(func(ctx context.Context, s sale) (receipt, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, service.URL+"/charges", strings.NewReader(s.ID))
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		return receipt(resp.Header.Get("Exactly-Once-Result")), errors.Join(httpretry.CheckResponse(resp), resp.Body.Close())
	})
	secret := []byte("sixteen random bytes or more")
	tracker := caller.NewTracker(caller.Config{Name: "charges", Secret: secret})
	op := asyncop.UnorderedWaitWithRetry(charge, time.Minute, 100,
		strategies.ReasonAware(httpretry.Classifier[receipt](), nil).WithMaxDelay(time.Nanosecond),
		asyncop.WithObserver(tracker), asyncop.WithFailureSink(queue.TakeFailure))
	sales := make(chan sale, 1)
	sales <- sale{"sale-1", 100}
	source := queue.Source(channel.NewSource(sales, func(s sale) *message.Meta { return &message.Meta{ID: s.ID} }))
	for m, err := range op.Messages(receive(context.Background(), source)) {
		fmt.Println("visit", m.Meta().Visit, m.Value, err)
		m.Ack()
		break
	}
	_ = source.Close(context.Background())
	fmt.Println("charges:", charges.Load())
	// Output:
	// visit 2 replayed <nil>
	// charges: 1
}

var errClosed = errors.New("the shop is closed")

func TestLadder_Snooze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opens := time.Now().Add(9 * time.Hour)
		sales := delivery.NewQueue[sale](memory.Open(), "sales", delivery.WithLogger(quiet))
		require.NoError(t, sales.Put(t.Context(), sale{"sale-1", 100}))
		calls := 0
		sell := func(_ context.Context, s sale) (receipt, error) {
			calls++
			wait := time.Until(opens)
			if wait > 0 {
				return "", predicates.WithSnooze(errClosed, wait) // then again, without a visit
			}
			return receipt(s.ID), nil
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Hour)
		defer stop()
		op := asyncop.OrderedWait(asyncop.Blocking(sell), time.Minute, 1, asyncop.WithFailureSink(sales.TakeFailure), asyncop.WithLogger(quiet))
		summary, err := delivery.Run(ctx, sales, op, delivery.NewQueue[receipt](memory.Open(), "receipts"), delivery.WithLogger(quiet))
		require.NoError(t, err)
		require.Equal(t, 2, calls)
		require.Equal(t, 1, summary.Released)
		require.Equal(t, 1, summary.Done)
	})
}
