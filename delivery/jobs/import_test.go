package jobs_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// Imports are records of ended jobs, of which a thousand are kept: the latest ones.
func TestImport_OldOnesAreForgotten(t *testing.T) {
	s := memory.Open()
	j := jobsOf(t, s)
	importOne := func() {
		_, err := j.Import(t.Context(), "orders", "ann", "moved", func(context.Context) (done, skipped int, err error) { return 1, 0, nil })
		require.NoError(t, err)
	}
	ended := func() []store.Record {
		list, err := s.Records(t.Context(), "job-ended", "", 2000)
		require.NoError(t, err)
		return list
	}
	importOne()
	first := ended()
	require.Len(t, first, 1)
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		for i := range 1000 {
			err := tx.Write(ctx, store.Record{Kind: "job-ended", Name: first[0].Name + fmt.Sprintf("-%03d", i), Value: first[0].Value})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	importOne()
	list := ended()
	require.Len(t, list, 1000)
	require.Equal(t, first[0].Name+"-001", list[0].Name)
	unfinished, err := s.Records(t.Context(), "job", "", 1)
	require.NoError(t, err)
	require.Empty(t, unfinished)
}
