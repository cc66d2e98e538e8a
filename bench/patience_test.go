package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPatience_BusyMachine(t *testing.T) {
	for _, test := range []struct {
		base, needed time.Duration
		want         []time.Duration
		err          error
	}{
		{200 * time.Millisecond, 200 * time.Millisecond, []time.Duration{200 * time.Millisecond}, nil},
		{200 * time.Millisecond, 4 * time.Second, []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second}, nil},
		{200 * time.Millisecond, time.Minute, []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second, 25 * time.Second}, errWeighedLate},
		{12 * time.Second, time.Minute, []time.Duration{12 * time.Second, time.Minute}, nil},
		{12 * time.Second, time.Hour, []time.Duration{12 * time.Second, time.Minute}, errWeighedLate},
	} {
		var got []time.Duration
		row := patiently(test.base, func(_ *Meter, _ int, base time.Duration) error {
			if got = append(got, base); base < test.needed {
				return errWeighedLate
			}
			return nil
		})
		require.Equal(t, test.err, row(nil, 0))
		require.Equal(t, test.want, got)
	}
}
