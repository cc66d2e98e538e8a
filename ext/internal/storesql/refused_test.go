package storesql

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A transaction may fail after the database has returned its rows: then these messages
// are not leased.
func TestTakeCall_RowsWithAnError(t *testing.T) {
	down, refusal := errors.New("the commit has failed"), errors.New("refused")
	newCall := func(all error) TakeCall[int64] {
		return TakeCall[int64]{
			All:       func() ([]int64, error) { return []int64{1, 2}, all },
			Find:      func() ([]int64, error) { return []int64{1, 2}, nil },
			These:     func(positions []int64) ([]int64, error) { return positions, down },
			IsRefusal: func(err error) bool { return errors.Is(err, refusal) },
			Log:       func(int64, error, time.Duration) {},
			Now:       time.Now,
		}
	}
	for name, all := range map[string]error{"all messages": down, "some of them": refusal} {
		t.Run(name, func(t *testing.T) {
			call := newCall(all)
			leased, err := call.Do(new(Refused))
			require.ErrorIs(t, err, down)
			require.Empty(t, leased)
		})
	}
}
