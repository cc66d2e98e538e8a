package checkpoint_test

import (
	"fmt"
	"testing"

	"github.com/weirflow/weir/checkpoint/files"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
)

// elements returns the state of n elements of 110 bytes, in pieces.
func elements(b *testing.B, n int) participant.State {
	b.Helper()
	const size, inPiece = 110, 10_000
	var state participant.State
	for ; n > 0; n -= inPiece {
		state = append(state, make([]byte, size*min(n, inPiece)))
	}
	return state
}

func forEachSize(b *testing.B, f func(b *testing.B, n int)) {
	b.Helper()
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("elements=%d", n), func(b *testing.B) {
			if testing.Short() && n > 100_000 {
				b.Skip("too large for -short")
			}
			f(b, n)
		})
	}
}

// BenchmarkSave is a checkpoint on the disk, syncs included.
func BenchmarkSave(b *testing.B) {
	forEachSize(b, func(b *testing.B, n int) {
		state := elements(b, n)
		d, err := files.OpenDir(b.TempDir())
		require.NoError(b, err)
		d.KeepLast(1)
		defer d.Close()
		b.SetBytes(state.Size())
		b.ReportAllocs()
		id := uint64(0)
		for b.Loop() {
			id++
			if err := d.Save(b.Context(), &checkpoint.Snapshot{ID: id, States: map[string]participant.State{"op": state}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	forEachSize(b, func(b *testing.B, n int) {
		state := elements(b, n)
		d, err := files.OpenDir(b.TempDir())
		require.NoError(b, err)
		defer d.Close()
		require.NoError(b, d.Save(b.Context(), &checkpoint.Snapshot{ID: 1, States: map[string]participant.State{"op": state}}))
		b.SetBytes(state.Size())
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.Load(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}
