package jobs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/internal/testing/golden"
)

func TestBackend_Strip(t *testing.T) {
	at := func(minute float64) time.Time {
		return golden.At.Add(time.Duration(minute * float64(time.Minute)))
	}
	for name, tt := range map[string]struct {
		states []jobs.BackendState
		want   string
	}{
		"no states":                         {nil, ",,,,"},
		"up for long":                       {[]jobs.BackendState{{State: "up", Since: at(-60)}}, "up,up,up,up,up"},
		"not known at first":                {[]jobs.BackendState{{State: "up", Since: at(2)}}, ",,up,up,up"},
		"the worst counts":                  {[]jobs.BackendState{{State: "up", Since: at(-60)}, {State: "down", Since: at(1.2)}, {State: "ramping", Since: at(1.4)}, {State: "up", Since: at(3.5)}}, "up,down,ramping,ramping,up"},
		"probing is a part of an outage":    {[]jobs.BackendState{{State: "held", Since: at(0)}, {State: "probing", Since: at(4)}}, "held,held,held,held,down"},
		"a state of a later version":        {[]jobs.BackendState{{State: "later", Since: at(0)}, {State: "up", Since: at(3)}}, ",,,up,up"},
		"states before and after the strip": {[]jobs.BackendState{{State: "down", Since: at(-9)}, {State: "up", Since: at(-8)}, {State: "down", Since: at(5)}}, "up,up,up,up,up"},
	} {
		b := jobs.Backend{States: tt.states}
		require.Equal(t, tt.want, strings.Join(b.Strip(at(0), at(5), 5), ","), name)
	}
}
