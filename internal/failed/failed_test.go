package failed_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/failed"
)

// What is stored of an error has no secrets of URLs: more people read histories than messages.
func TestAHistoryHasNoSecrets(t *testing.T) {
	meta := failed.History(t.Context(), asyncop.Failure[int]{Err: errors.New("https://ann:s3cret@pay is down")}, time.Now())
	require.Equal(t, "https://ann:xxxxx@pay is down", meta.LastError)
}
