package storesql

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

func TestAheadLimit(t *testing.T) {
	a := Ahead{Free: []Place{{At: 1, Position: 1}, {At: 1, Position: 2}, {At: 2, Position: 1}}, To: Place{3, 7}, IsEnd: true}
	a.Limit(3)
	require.Equal(t, Place{3, 7}, a.To)
	require.True(t, a.IsEnd)
	a.Limit(2)
	require.Equal(t, []int64{1, 2}, a.Positions())
	require.Equal(t, Place{1, 2}, a.To, "the next step begins with the third message")
	require.False(t, a.IsEnd)

	late := Ahead{Free: []Place{{At: 2}, {At: 3}}, To: Place{1, 1}}
	late.Limit(1)
	require.Equal(t, Place{1, 1}, late.To, "the next step reads these messages again")
}

// A search continues where it was. At its end it goes on with later messages, and begins
// again when ten times its time has passed.
func TestSearches(t *testing.T) {
	now := time.Unix(1000, 0)
	var s Searches
	require.Equal(t, Place{}, s.Begin("q", now))
	s.Continue("q", &Ahead{To: Place{5, 2}}, 0, now)
	require.Equal(t, Place{5, 2}, s.Begin("q", now))
	require.Equal(t, Place{}, s.Begin("other", now))
	s.Continue("q", &Ahead{To: Place{5, 1}}, 0, now)
	require.Equal(t, Place{5, 2}, s.Begin("q", now), "a concurrent step has come further")
	now = now.Add(time.Second)
	s.Continue("q", &Ahead{To: Place{6, 1}, IsEnd: true}, 0, now)
	require.Equal(t, Place{6, 1}, s.Begin("q", now.Add(searchShare*time.Second-2*time.Second)))
	s.Continue("q", &Ahead{To: Place{7, 1}, IsEnd: true}, 0, now.Add(time.Second))
	now = now.Add((searchShare - 1) * time.Second)
	require.Equal(t, Place{}, s.Begin("q", now), "a message that was held may come before the place")
	s.Continue("q", &Ahead{To: Place{1, 1}}, 0, now)
	require.Equal(t, Place{1, 1}, s.Begin("q", now.Add(time.Hour)), "it has not reached the end")
	some := &Ahead{Free: []Place{{At: 2}, {At: 3}, {At: 4}}, To: Place{4, 0}}
	s.Continue("q", some, 1, now)
	require.Equal(t, Place{1, 1}, s.Begin("q", now), "the next step takes the others")
	s.Continue("q", some, 3, now)
	require.Equal(t, Place{4, 0}, s.Begin("q", now))
	some.To = Place{5, 0}
	s.Continue("q", some, 0, now)
	require.Equal(t, Place{5, 0}, s.Begin("q", now), "it has passed messages that cannot be taken")

	var short Searches
	require.Equal(t, Place{}, short.Begin("q", now))
	short.Continue("q", &Ahead{To: Place{5, 2}, IsEnd: true}, 0, now)
	require.Equal(t, Place{}, short.Begin("q", now), "a search of one step begins again at once")
}

// The calls for a queue alternate, and take from the second source only if the first has no
// messages.
func TestSearches_TakeByTurns(t *testing.T) {
	var s Searches
	errTaking := errors.New("the connection is lost")
	turn := func(queue string, taken int, err error) (calls string) {
		take := func(name string) func() ([]store.Leased, error) {
			return func() ([]store.Leased, error) {
				calls += name
				return make([]store.Leased, taken), err
			}
		}
		got, gotErr := s.TakeByTurns(queue, take("k"), take("w"))
		require.Len(t, got, taken)
		require.Equal(t, err, gotErr)
		return calls
	}
	require.Equal(t, "k", turn("q", 1, nil))
	require.Equal(t, Place{}, s.Begin("q", time.Unix(1000, 0)))
	require.Equal(t, "w", turn("q", 1, nil))
	require.Equal(t, "kw", turn("q", 0, nil))
	require.Equal(t, "wk", turn("q", 0, nil))
	require.Equal(t, "k", turn("q", 0, errTaking))
	require.Equal(t, "k", turn("other", 1, nil))
}
