package store_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
)

// People see one name, and workers of earlier versions read the other.
func TestCauseNamed_StoredAndShownNames(t *testing.T) {
	for cause, shown := range map[store.Cause]string{
		store.Permanent: "permanent", store.UnsafeToRepeat: "unsafe to repeat", "of a later version": "of a later version", "": "",
	} {
		require.Equal(t, shown, fmt.Sprint(cause))
		require.Equal(t, cause, store.CauseNamed(shown))
		require.Equal(t, cause, store.CauseNamed(string(cause)))
	}
	stored, err := json.Marshal(map[store.Cause]store.Cause{store.UnsafeToRepeat: store.UnsafeToRepeat})
	require.NoError(t, err)
	require.JSONEq(t, `{"outcome unknown":"outcome unknown"}`, string(stored))
}
