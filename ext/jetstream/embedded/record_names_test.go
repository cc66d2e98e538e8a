package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
)

func writeRecords(t *testing.T, e *weirjs.Engine, kind string, rs ...store.Record) {
	t.Helper()
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) (err error) {
		for _, r := range rs {
			r.Kind = kind
			err = errors.Join(err, tx.Write(ctx, r))
		}
		return err
	}))
}

// The server lists the names of a kind once, and not for each call. Regression: the
// history of 300 queues took seconds.
func TestRecords_NamesAreListedOnce(t *testing.T) {
	js := connect(t, fresh(t))
	s := openStore(t, js, newStore(t, js))
	var rs []store.Record
	for i := range 900 {
		rs = append(rs, store.Record{Name: fmt.Sprintf("2026-01-02T03 orders-of-shop-%03d", i), Value: "v"})
	}
	writeRecords(t, s, "history", rs...)
	_, err := s.Records(t.Context(), "history", "z", 1) // it lists the names
	require.NoError(t, err)
	before := js.Conn().Stats().InBytes
	for i := range 10 {
		list, err := s.Records(t.Context(), "history", rs[i].Name, 2)
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, rs[i+1].Name, list[0].Name)
	}
	require.Less(t, js.Conn().Stats().InBytes-before, uint64(40_000), "10 lists of 900 names have 500,000 bytes")
}

// A call finds all records that others have written before it, few or many, and does not
// return records that they have removed.
func TestRecords_NamesOfOtherProcesses(t *testing.T) {
	js := connect(t, fresh(t))
	name := newStore(t, js)
	s, other := openStore(t, js, name), openStore(t, js, name)
	names := func() (all []string) {
		t.Helper()
		rs, err := s.Records(t.Context(), "k", "", 1000)
		require.NoError(t, err)
		for _, r := range rs {
			all = append(all, r.Name)
		}
		return all
	}
	require.Empty(t, names())
	writeRecords(t, other, "k", store.Record{Name: "b", Value: "v"})
	require.Equal(t, []string{"b"}, names())
	writeRecords(t, other, "other kind", store.Record{Name: "x", Value: "v"})
	writeRecords(t, other, "k", store.Record{Name: "c", Value: "v"}, store.Record{Name: "a", Value: "v"})
	require.Equal(t, []string{"a", "b", "c"}, names())
	writeRecords(t, other, "k", store.Record{Name: "b", Version: 1}, store.Record{Name: "c", Version: 1, Value: "w"})
	require.Equal(t, []string{"a", "c"}, names())
	writeRecords(t, other, "k", store.Record{Name: "b", Value: "again"})
	require.Equal(t, []string{"a", "b", "c"}, names())

	var many []store.Record
	for i := range 100 {
		many = append(many, store.Record{Name: fmt.Sprintf("m%03d", i), Value: "v"})
	}
	writeRecords(t, other, "k", many...)
	require.Len(t, names(), 103)
	require.NoError(t, s.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		rs, err := tx.Records(ctx, "k", "m098", 10)
		require.Len(t, rs, 1)
		return err
	}))
}
