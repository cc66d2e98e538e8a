package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// Order is what the examples of a backend charge.
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
	// open 2
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

func Example_backendByHand() {
	pay := backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)))
	pay.Close("migration until noon")
	op := asyncop.OrderedWait(asyncop.Blocking(charge), 20*time.Millisecond, 10, asyncop.WithBackend(pay), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for _, err := range op.Results(slices.Values([]Order{{Shop: "a"}})) {
		fmt.Println(errors.Is(err, asyncop.ErrBackendClosed))
	}

	pay.Open()
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
		fmt.Println(row, err, "lost:", pay.Stats().Lost)
	}
	// Output:
	// row <nil> lost: 2
}
