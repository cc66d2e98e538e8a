package wait

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
)

func TestForward_ClockIsSetBack(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Unix(1000, 0))
	c := NewForward(mock)
	require.Equal(t, time.Unix(1000, 0), c.Now())
	mock.Add(time.Second)
	require.Equal(t, time.Unix(1001, 0), c.Now())
	mock.Set(time.Unix(500, 0))
	require.Equal(t, time.Unix(1001, 0), c.Now())
	mock.Add(time.Second)
	require.Equal(t, time.Unix(1002, 0), c.Now())
	mock.Set(time.Unix(400, 0))
	mock.Add(time.Second) // read once, back and on
	require.Equal(t, time.Unix(1002, 0), c.Now())
}

func TestForward_AtLeast(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Unix(1000, 0))
	c := NewForward(mock)
	require.Equal(t, time.Unix(1000, 0), c.AtLeast(time.Unix(900, 0)))
	require.Equal(t, time.Unix(1100, 0), c.AtLeast(time.Unix(1100, 0)))
	mock.Add(time.Second)
	require.Equal(t, time.Unix(1101, 0), c.Now())
}
