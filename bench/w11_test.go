package bench

import (
	"iter"
	"testing"

	"github.com/stretchr/testify/require"
)

// Results out of key order are an error, not a number.
func TestKeyOrderIsChecked(t *testing.T) {
	row := w11Row("backwards", Peer, pipeline{}, func(in iter.Seq[*Item], out func(*Item)) error {
		var all []*Item
		for it := range in {
			all = append(all, it)
		}
		for i := range all {
			out(all[len(all)-1-i])
		}
		return nil
	})
	require.ErrorContains(t, row.Run(&Meter{}, 2*w11Keys), "which has the same key")
	keys := map[int]bool{}
	for i := range 2 * w11Keys {
		keys[w11Key(&Item{Seq: i})] = true
	}
	require.Greater(t, len(keys), w11Keys/2)
}
