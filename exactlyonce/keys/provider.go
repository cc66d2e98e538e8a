package keys

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/weirflow/weir/internal/guard"
)

// ErrRefused marks the error of a call that a provider has refused permanently and
// without effect, such as a declined card:
//
//	return charge, fmt.Errorf("%w: %w", keys.ErrRefused, err)
var ErrRefused = errors.New("keys: refused")

// CallProvider is [Call] for several equivalent services, such as two payment providers.
// choose names the service. The choice is stored before the first call, and later calls
// go to the same service, even after a restart. choose is called again only after an
// error that matches [ErrRefused], which is stored. After any other error the outcome is
// in doubt: the request fails, and its next attempt calls the same provider with the same
// key.
//
// choose receives the providers that have refused, in order. If it returns false, the
// error matches [ErrRefused], contains the providers with their reasons, and is definite.
// key differs for each provider. name has 1 to 35 bytes.
func CallProvider[T any](ctx context.Context, r *Run, name string, choose func(refused []string) (provider string, ok bool),
	call func(ctx context.Context, provider, key string) (T, error),
) (T, error) {
	type choice struct {
		Provider string
		OK       bool
	}
	type stepResult struct {
		Result  T
		Refused bool
		Reason  string
	}
	var refused, reasons []string
	for n := 1; ; n++ {
		chosen, err := Phase(ctx, r, fmt.Sprintf("%s-provider-%d", name, n), func(context.Context, *sql.Tx) (choice, error) {
			provider, ok := choose(refused)
			return choice{provider, ok}, nil
		})
		if err != nil {
			return *new(T), err
		}
		if !chosen.OK {
			return *new(T), fmt.Errorf("%w by %d providers: %s", ErrRefused, len(reasons), strings.Join(reasons, "; "))
		}
		answer, err := Call(ctx, r, fmt.Sprintf("%s-call-%d", name, n), func(ctx context.Context, key string) (stepResult, error) {
			result, err := call(ctx, chosen.Provider, key)
			if errors.Is(err, ErrRefused) {
				return stepResult{Refused: true, Reason: guard.Text(err)}, nil
			}
			return stepResult{Result: result}, err
		})
		if err != nil {
			return *new(T), err
		}
		if !answer.Refused {
			return answer.Result, nil
		}
		refused, reasons = append(refused, chosen.Provider), append(reasons, chosen.Provider+": "+answer.Reason)
	}
}
