package console

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

// Only an operator of this version judges whether the call may be made again.
func TestRepeated_RefusedResult(t *testing.T) {
	r := repeated(&store.Entry{Message: store.Message{Cause: store.Refused}}, time.Unix(0, 0))
	require.Equal(t, "careful", r.Level)
	text := strings.ToLower(r.Headline + " " + strings.Join(r.Lines, " "))
	require.Contains(t, text, "a repeat calls the service again")
	require.Contains(t, text, "not marked as unsafe to repeat")
	require.NotContains(t, text, "harm")
	require.NotContains(t, text, "safe to repeat, but")
}
