package oncewire_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/oncewire"
)

func TestOf(t *testing.T) {
	for value, want := range map[string]string{
		"": "", oncewire.Replayed: "", "STALE": "", "stale, stale": "",
		oncewire.Stale: oncewire.Stale, oncewire.Mismatch: oncewire.Mismatch, oncewire.InProgress: oncewire.InProgress,
		oncewire.Full: oncewire.Full, oncewire.Invalid: oncewire.Invalid,
	} {
		h := http.Header{}
		h.Set(oncewire.Result, value)
		require.Equal(t, want, oncewire.Of(h), value)
	}
	require.Equal(t, "", oncewire.Of(http.Header{}))
	require.Equal(t, "urn:weir:exactly-once:stale", oncewire.ProblemType(oncewire.Stale))
}
