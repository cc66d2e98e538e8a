package suite_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/suite"
)

func TestSetParallel(t *testing.T) {
	f := flag.Lookup("test.parallel")
	before := f.Value.String()
	t.Cleanup(func() { require.NoError(t, f.Value.Set(before)) })
	for length, want := range map[string]string{"": "17", "ci": "13"} {
		t.Setenv("WEIR_LONG", length)
		require.NoError(t, f.Value.Set(f.DefValue))
		suite.SetParallel(17, 13)
		if testing.Short() {
			want = "17"
		}
		require.Equal(t, want, f.Value.String(), "WEIR_LONG=%s", length)
	}
	require.NoError(t, f.Value.Set("1000")) // as by the flag
	suite.SetParallel(17, 13)
	require.Equal(t, "1000", f.Value.String())
}
