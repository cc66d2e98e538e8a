package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/reugn/go-streams/extension"
	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	payments     = 600
	breaksAfter  = 300 * time.Millisecond
	breakdown    = 700 * time.Millisecond
	breakerDelay = 150 * time.Millisecond // how long it stays open before it lets one call try
)

// payment is the id of one. It says nothing of idempotence, so it must not happen twice.
type payment string

// pay returns the function of the operator: it asks the breaker, and then the bank.
func pay(breaker circuitbreaker.CircuitBreaker[any], bankURL string, client *http.Client) asyncop.AsyncFunction[payment, payment] {
	return failsafecall.Guard(breaker, asyncop.Blocking(func(ctx context.Context, p payment) (payment, error) {
		return p, post(ctx, client, bankURL, p)
	}))
}

func post(ctx context.Context, client *http.Client, bankURL string, p payment) error {
	form := url.Values{"id": {string(p)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, bankURL, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := client.Do(req) // its transport reports how far it has come
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return httpretry.CheckResponse(resp)
}

// policy retries what the breaker refused when the breaker may let it through, and anything else only where it is safe.
func policy() *strategies.Policy[payment] {
	return strategies.ReasonAware(
		predicates.Classifiers(predicates.Named[payment](), httpretry.Classifier[payment]()), nil)
}

// run is the whole program. It returns an error if a payment was sent twice, or got lost.
func run(out io.Writer) error {
	start := time.Now()
	say := printer(out, start)
	bank := newBank(func() bool {
		since := time.Since(start)
		return since >= breaksAfter && since < breaksAfter+breakdown
	})
	defer bank.Close()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()

	fmt.Fprintf(out, "%d payments; the bank breaks down at %v, for %v\n\n", payments, breaksAfter, breakdown)
	breaker := circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(3).WithDelay(breakerDelay).
		OnStateChanged(func(e circuitbreaker.StateChangedEvent) { say("breaker: %v, was %v", e.NewState, e.OldState) }).
		Build()

	source := make(chan any)
	go func() {
		defer close(source)
		for i := range payments {
			source <- payment(fmt.Sprintf("P%03d", i+1))
			time.Sleep(2 * time.Millisecond)
		}
	}()
	booked := make(chan any, payments)
	var doubtful []payment
	op := asyncop.UnorderedWaitWithRetry(
		pay(breaker, bank.URL, &http.Client{Transport: httpretry.Transport(transport)}), 10*time.Second, 1000, policy(),
		asyncop.WithMaxConcurrentCalls(8), asyncop.WithDrainRetries(),
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[payment]) error {
			if f.Ambiguous() { // another one could be sent again: there is none here
				doubtful = append(doubtful, f.Element)
			}
			return nil
		}),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)), // the report says it
	)
	extension.NewChanSource(source).Via(op).Via(flow.NewPassThrough()).To(extension.NewChanSink(booked))
	if err := op.Wait(); err != nil {
		return err
	}
	return report(out, bank, op.Stats(), len(booked), doubtful)
}

// printer returns a Printf that prints the time, for any goroutine.
func printer(out io.Writer, start time.Time) func(format string, args ...any) {
	var mu sync.Mutex
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, "%6.2fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// report reports how it went and checks it against the bank's books.
func report(out io.Writer, bank *bank, s asyncop.Stats, answered int, doubtful []payment) error {
	inDoubt, bookedInDoubt := len(doubtful), 0
	bank.mu.Lock()
	defer bank.mu.Unlock()
	for _, p := range doubtful {
		bookedInDoubt += bank.booked[string(p)]
	}
	requests, twice := 0, 0
	for _, n := range bank.received {
		if requests += n; n > 1 {
			twice++
		}
	}
	fmt.Fprintf(out, `
  payments                    %4d
    booked, and answered      %4d
    in doubt: sent, no answer %4d   never sent again; a person looks into them
      of these booked         %4d   which the job could not know
  calls the breaker refused   %4d   not sent, so every one was tried again
  requests the bank received  %4d
  payments received twice     %4d
`, payments, answered, inDoubt, bookedInDoubt, s.Retries(), requests, twice)
	switch {
	case twice > 0:
		return errors.New("a payment was sent twice")
	case answered+inDoubt != payments || len(bank.received) != payments:
		return errors.New("a payment got lost")
	}
	return nil
}
