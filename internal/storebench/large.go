package storebench

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
)

// Large checks that Take and Claim of large messages return some at a time, and in the end all.
func Large(t *testing.T, s store.Inspector) {
	t.Helper()
	const n, size = 10, 5 << 20
	for i := range n {
		require.NoError(t, s.Put(t.Context(), "large", store.Message{
			Meta: delivery.Meta{ID: strconv.Itoa(i)}, Payload: make([]byte, size), Cause: store.Permanent,
		}))
	}
	var leases []store.Lease
	all := func(next func() ([]store.Leased, error)) {
		t.Helper()
		var calls []int
		leases = nil
		for {
			got, err := next()
			require.NoError(t, err)
			if len(got) == 0 {
				break
			}
			for _, l := range got {
				require.Equal(t, strconv.Itoa(len(leases)), l.Meta.ID)
				leases = append(leases, l.Lease)
			}
			calls = append(calls, len(got))
		}
		require.Equal(t, []int{4, 4, 2}, calls, "the fourth passes 16 MiB")
	}
	all(func() ([]store.Leased, error) {
		return s.Claim(t.Context(), "large", store.Filter{}, store.Page{Max: 100}, time.Hour)
	})
	require.NoError(t, s.Release(t.Context(), 0, leases...))
	all(func() ([]store.Leased, error) { return s.Take(t.Context(), "large", 100, time.Hour) })
}
