//go:build unix

package keystest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
)

// The provider is stored before it is called, and later calls use the same one. Another
// is called only after a definite refusal.
func (b *bench) provider() {
	lost := errors.New("no answer")
	var failure map[string]error // by provider
	var calls []string           // provider and key of each call
	charges := map[string]bool{}
	favourite := "A"
	handle := func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		charge, err := keys.CallProvider(ctx, run, "charge", func(refused []string) (string, bool) {
			for _, provider := range []string{favourite, "A", "B"} {
				if !slices.Contains(refused, provider) {
					return provider, true
				}
			}
			return "", false
		}, func(_ context.Context, provider, key string) (string, error) {
			calls = append(calls, provider+" "+key)
			assert.Equal(b, 1, count(b.T, b.db, "SELECT count(*) FROM weir_keys WHERE id = $1 AND recovery_point LIKE 'charge-provider-%'", run.ID()),
				"the provider is not stored before the call")
			if err := failure[provider]; err != nil {
				if errors.Is(err, lost) {
					charges[provider+" "+key] = true
				}
				return "", err
			}
			charges[provider+" "+key] = true
			return "charge of " + provider, nil
		})
		switch {
		case errors.Is(err, keys.ErrRefused):
			return keys.JSON(http.StatusPaymentRequired, err.Error())
		case err != nil:
			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
		}
		return keys.JSON(http.StatusOK, charge)
	}
	do := func(key string) (string, error) {
		response, err := b.server().Operation("op", handle).Do(b.Context(), request("a", key)) // a different worker each time
		return strings.TrimSpace(string(response.Body)), err
	}

	// A charges, its answer is lost, and B is preferred from now on.
	failure = map[string]error{"A": lost}
	_, err := do("k")
	require.ErrorIs(b, err, lost)
	favourite = "B"
	_, err = do("k")
	require.ErrorIs(b, err, lost)
	failure = nil
	answer, err := do("k")
	require.NoError(b, err)
	assert.Equal(b, `"charge of A"`, answer)
	assert.Len(b, charges, 1)
	require.Len(b, calls, 3)
	assert.Equal(b, calls[0], calls[1])
	assert.Equal(b, calls[0], calls[2])

	// B refuses, so A is called with a different key. A's answer may be lost, too.
	clear(charges)
	calls = nil
	failure = map[string]error{"B": fmt.Errorf("%w: declined", keys.ErrRefused), "A": lost}
	_, err = do("k2")
	require.ErrorIs(b, err, lost)
	failure = nil // B would accept now
	answer, err = do("k2")
	require.NoError(b, err)
	assert.Equal(b, `"charge of A"`, answer)
	assert.Len(b, charges, 1)
	require.Len(b, calls, 3)
	assert.Equal(b, calls[1], calls[2])
	assert.NotEqual(b, strings.TrimPrefix(calls[0], "B "), strings.TrimPrefix(calls[1], "A "))

	// A refusal by all providers is final.
	clear(charges)
	refusal := fmt.Errorf("%w: declined", keys.ErrRefused)
	failure = map[string]error{"A": refusal, "B": refusal}
	answer, err = do("k3")
	require.NoError(b, err)
	assert.Contains(b, answer, "refused by 2 providers: B: keys: refused: declined; A: keys: refused: declined")
	failure = nil
	again, err := do("k3")
	require.NoError(b, err)
	assert.Equal(b, answer, again)
	assert.Empty(b, charges)
}
