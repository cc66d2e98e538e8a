package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// Order is an order that the examples of a backend charge.
type Order struct {
	Shop   string
	Tokens float64
}

func charge(context.Context, Order) (string, error) { return "charged", nil }

func Example_backend() {
	pay := backend.New("payments",
		backend.Adaptive(8, 200),
		backend.Rate(500, time.Second),
		backend.RetryBudget(0.2))

	strategy := strategies.ReasonAware(httpretry.Classifier[string](), nil)
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(charge), 10*time.Second, 1000, strategy,
		asyncop.WithBackend(pay))

	for receipt, err := range op.Results(slices.Values([]Order{{Shop: "a"}, {Shop: "b"}})) {
		fmt.Println(receipt, err)
	}
	fmt.Println(pay.Stats().State, pay.Stats().Started)
	// Output:
	// charged <nil>
	// charged <nil>
	// up 2
}

// completion is the reply of a language model.
type completion struct {
	Text   string
	Tokens int
}

type languageModel struct{}

func (languageModel) Complete(context.Context, string) (completion, error) {
	return completion{Text: "yes", Tokens: 12}, nil
}

func Example_backendCost() {
	var model languageModel
	llm := backend.New("llm", backend.CallRate(500, time.Minute), backend.Rate(200_000, time.Minute))
	op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, prompt string) (string, error) {
		reply, err := model.Complete(ctx, prompt)
		if err == nil {
			asyncop.ReportCost(ctx, float64(reply.Tokens))
		}
		return reply.Text, err
	}), time.Minute, 500, asyncop.WithBackend(llm,
		asyncop.Cost(func(prompt string) float64 { return float64(len(prompt)) / 4 })))

	for answer, err := range op.Results(slices.Values([]string{"Is it true?"})) {
		fmt.Println(answer, err)
	}
	// Output:
	// yes <nil>
}

func Example_backendBudget() {
	complete := func(ctx context.Context, prompt string) (string, error) {
		asyncop.ReportCost(ctx, 600_000)
		return "yes", nil
	}
	llm := backend.New("llm", backend.Limit(1))
	op := asyncop.OrderedWait(asyncop.Blocking(complete), time.Minute, 500,
		asyncop.WithBackend(llm, asyncop.Budget(1_000_000)))

	prompts := slices.Repeat([]string{"Is it true?"}, 1000)
	for _, err := range op.Results(slices.Values(prompts)) {
		if err != nil {
			fmt.Println(errors.Is(err, asyncop.ErrBudgetSpent))
		}
	}
	// Output: true
}

func Example_backendTenants() {
	pay := backend.New("payments", backend.TenantRate(10, time.Second))
	op := asyncop.UnorderedWait(asyncop.Blocking(charge), time.Minute, 1000, asyncop.WithBackend(pay,
		asyncop.Cost(func(o Order) float64 { return o.Tokens }),
		asyncop.Tenant(func(o Order) string { return o.Shop })))

	for receipt, err := range op.Results(slices.Values([]Order{{"a", 1}, {"a", 1}, {"b", 1}})) {
		fmt.Println(receipt, err)
	}
	// Output:
	// charged <nil>
	// charged <nil>
	// charged <nil>
}

// Shop a floods the queue, and messages of shop b are called nevertheless.
func Example_backendFairQueue() {
	engine := memory.Open()
	pay := backend.New("payments", backend.Limit(1))
	receipts := delivery.NewQueue[string](engine, "receipts")
	ctx, stop := context.WithCancel(context.Background())
	order := ""
	charge := func(_ context.Context, o Order) (string, error) {
		if order += o.Shop; len(order) == 101 {
			stop()
		}
		return "charged", nil
	}
	orders := delivery.NewQueue[Order](engine, "orders", delivery.WithFairByKey(25))
	for i := range 101 {
		o := Order{Shop: "a"}
		if i == 100 {
			o.Shop = "b"
		}
		err := orders.Put(ctx, o, delivery.Key(o.Shop))
		check(err)
	}
	op := asyncop.UnorderedWait(asyncop.Blocking(charge), time.Minute, 50, asyncop.WithBackend(pay),
		asyncop.WithFailureSink(orders.TakeFailure))
	summary, err := delivery.Run(ctx, orders, op, receipts)
	fmt.Println(summary.Done, err)
	fmt.Println("b waited for fewer than 51 others:", strings.Index(order, "b") < 51)
	// Output:
	// 101 <nil>
	// b waited for fewer than 51 others: true
}

// Event is an event that a webhook sends to a customer.
type Event struct{ Customer string }

// The endpoint of customer a is down, and customer b is served nevertheless.
func Example_backendTenantBreaker() {
	engine := memory.Open()
	var delivered atomic.Int64
	send := func(_ context.Context, e Event) (string, error) {
		if e.Customer == "a" {
			return "", &httpretry.StatusError{StatusCode: 503}
		}
		delivered.Add(1)
		return "delivered", nil
	}
	strategy := strategies.ReasonAware(httpretry.Classifier[string](), nil).Idempotent()
	receipts := delivery.NewQueue[string](engine, "receipts")
	hooks := delivery.NewQueue[Event](engine, "hooks", delivery.WithFairByKey(5),
		delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
	customers := backend.New("customers", backend.Limit(100), backend.TenantBreaker())

	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(send), 10*time.Second, 100, strategy,
		asyncop.WithBackend(customers),
		asyncop.WithFailureSink(hooks.TakeFailure))
	ctx, stop := context.WithCancel(context.Background())
	for i := range 40 {
		e := Event{Customer: []string{"a", "b"}[i%2]}
		err := hooks.Put(ctx, e, delivery.Key(e.Customer))
		check(err)
	}
	go func() { // ends when b has its events, and a is down
		for delivered.Load() < 20 || customers.Stats().TenantsDown == 0 {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	summary, err := delivery.Run(ctx, hooks, op, receipts)
	fmt.Println(summary.Done, err)
	fmt.Println(customers.Stats().State, customers.Stats().TenantsDown)
	// Output:
	// 20 <nil>
	// up 1
}

func Example_backendByHand() {
	pay := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
	pay.Hold("migration until noon")
	op := asyncop.OrderedWait(asyncop.Blocking(charge), 20*time.Millisecond, 10, asyncop.WithBackend(pay), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for _, err := range op.Results(slices.Values([]Order{{Shop: "a"}})) {
		fmt.Println(errors.Is(err, asyncop.ErrBackendDown))
	}

	pay.Resume()
	op = asyncop.OrderedWait(asyncop.Blocking(charge), time.Second, 10, asyncop.WithBackend(pay))
	for receipt, err := range op.Results(slices.Values([]Order{{Shop: "a"}})) {
		fmt.Println(receipt, err)
	}
	// Output:
	// true
	// charged <nil>
}

func Example_backendReasons() {
	errTooMany := errors.New("too many connections")
	strategy := strategies.ReasonAware(predicates.ByException[string](
		predicates.ErrorIs(errTooMany), httpretry.TooManyRequests), nil)

	pay := backend.New("db", backend.WithLogger(slog.New(slog.DiscardHandler)))
	calls := 0
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(context.Context, string) (string, error) {
		if calls++; calls < 3 {
			return "", errTooMany
		}
		return "row", nil
	}), time.Second, 10, strategy, asyncop.WithBackend(pay))
	for row, err := range op.Results(slices.Values([]string{"a"})) {
		fmt.Println(row, err, "throttled:", pay.Stats().Throttled)
	}
	// Output:
	// row <nil> throttled: 2
}
