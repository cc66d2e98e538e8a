package core_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
)

func TestConfigLongestCall_Timeouts(t *testing.T) {
	type limits = core.Limits
	const element, attempt = 10 * time.Second, 3 * time.Second
	shares := struct{ call.Lookups[int] }{}
	for name, c := range map[string]struct {
		core.Config[int, int]
		want time.Duration
	}{
		"none":                      {core.Config[int, int]{}, 0},
		"element":                   {core.Config[int, int]{Limits: limits{Timeout: element}}, element},
		"attempt":                   {core.Config[int, int]{Limits: limits{Timeout: element, AttemptTimeout: attempt}}, attempt},
		"attempt longer":            {core.Config[int, int]{Limits: limits{Timeout: attempt, AttemptTimeout: element}}, attempt},
		"own timeouts":              {core.Config[int, int]{Limits: limits{Timeout: element}, OwnTimeouts: true}, 0},
		"own timeouts and attempt":  {core.Config[int, int]{Limits: limits{Timeout: element, AttemptTimeout: attempt}, OwnTimeouts: true}, attempt},
		"lookups":                   {core.Config[int, int]{Limits: limits{Timeout: element}, Lookups: shares}, 2 * element},
		"lookups without a timeout": {core.Config[int, int]{Lookups: shares}, 0},
		"lookups for ever":          {core.Config[int, int]{Limits: limits{Timeout: math.MaxInt64}, Lookups: shares}, math.MaxInt64 - 1},
	} {
		require.Equal(t, c.want, c.LongestCall(), name)
	}
}
