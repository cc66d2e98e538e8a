package verdicts_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/verdicts"
	"github.com/weirflow/weir/message"
)

func TestWhyAMessageWasRejectedHasNoSecrets(t *testing.T) {
	var meta message.Meta
	verdicts.Rejected(&meta, message.Verdict{Kind: message.Rejected, Err: errors.New("https://ann:s3cret@pay is down")}, time.Now())
	require.Equal(t, "https://ann:xxxxx@pay is down", meta.LastError)
}
