package settle_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

func TestWhyAMessageWasRejectedHasNoSecrets(t *testing.T) {
	var meta message.Meta
	settle.Rejected(&meta, message.Settlement{Kind: message.Rejected, Err: errors.New("https://ann:s3cret@pay is down")}, time.Now())
	require.Equal(t, "https://ann:xxxxx@pay is down", meta.LastError)
}

// Law W2: a dead letter that fits without its timeline keeps its bytes.
func TestAShorterHistoryHasNoTimeline(t *testing.T) {
	meta := message.Meta{ID: "a", Timeline: []message.Step{{Visit: 1, Attempt: 1}}}
	tries := 0
	whole, err := settle.Bury(meta, "here", func(meta message.Meta, _ bool) error {
		if tries++; len(meta.Timeline) > 0 {
			return message.ErrRefused
		}
		return nil
	})
	require.NoError(t, err)
	require.True(t, whole)
	require.Equal(t, 2, tries)
	require.Len(t, meta.Timeline, 1)
}
