package settle_test

import (
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

func TestRecordRejection_ReasonHasNoSecrets(t *testing.T) {
	var meta message.Meta
	settle.RecordRejection(&meta, message.Settlement{Kind: message.Rejected, Err: errors.New("https://ann:s3cret@pay is down")}, time.Now())
	require.Equal(t, "https://ann:xxxxx@pay is down", meta.LastError)
}

// Regression: the text of a client's error kept the query of a URL without a scheme.
func TestRecordRejection_ReasonHasNoSecretsOfAURLWithoutScheme(t *testing.T) {
	var meta message.Meta
	err := &url.Error{Op: "Get", URL: "pay.internal/charge?token=s3cret", Err: errors.New("unsupported protocol scheme")}
	settle.RecordRejection(&meta, message.Settlement{Kind: message.Rejected, Err: err}, time.Now())
	require.NotContains(t, meta.LastError, "s3cret")
	require.Contains(t, meta.LastError, "pay.internal/charge")

	var pointer message.Meta
	_, refusal := settle.Bury(message.Meta{ID: "a"}, "here", func(meta message.Meta, _ bool) error {
		pointer = meta
		return fmt.Errorf("%w: %w", message.ErrRefused, err)
	})
	require.ErrorIs(t, refusal, message.ErrRefused)
	require.NotContains(t, pointer.LastError, "s3cret")
}

// Law W1: a call that an earlier visit has left in doubt decides about the cause, however
// this visit ended.
func TestRecordRejection_CallInDoubt(t *testing.T) {
	for want, err := range map[store.Cause]error{
		store.Undecodable: decoder.Unreadable(errors.New("no JSON")),
		store.Lapsed:      settle.LapsedError(5),
		store.Refused:     fmt.Errorf("too large: %w", message.ErrRefused),
		store.Permanent:   errors.New("no such card"),
	} {
		v := message.Settlement{Kind: message.Rejected, Err: err}
		require.Equal(t, want, settle.RecordRejection(&message.Meta{}, v, time.Now()))
		inDoubt := store.UnsafeToRepeat
		if want == store.Undecodable || want == store.Lapsed { // a person must act first, whether or not a call is in doubt
			inDoubt = want
		}
		require.Equal(t, inDoubt, settle.RecordRejection(&message.Meta{UnsafeToRepeat: true}, v, time.Now()))
		v.UnsafeToRepeat = true
		require.Equal(t, inDoubt, settle.RecordRejection(&message.Meta{}, v, time.Now()))
	}
}

// A client has set the header of pointers on an empty message.
func TestRecordRejection_PointerHeaderOfAClient(t *testing.T) {
	headers := map[string]string{"weir-points-to": "nowhere", store.HeaderPointsTo: "nowhere", "tenant": "blue"}
	meta := message.Meta{ID: "a", Headers: headers}
	settle.RecordRejection(&meta, message.Settlement{Kind: message.Rejected, Err: errors.New("no such card")}, time.Now())
	require.Equal(t, map[string]string{"tenant": "blue"}, meta.Headers)
	require.Len(t, headers, 3, "the map may be shared")

	for _, refusals := range []int{0, 1} { // both forms with bytes
		_, err := settle.Bury(message.Meta{ID: "a", Headers: headers}, "here", func(meta message.Meta, _ bool) error {
			require.Equal(t, map[string]string{"tenant": "blue"}, meta.Headers)
			if refusals--; refusals >= 0 {
				return message.ErrRefused
			}
			return nil
		})
		require.NoError(t, err)
	}
}

// Law W2: a dead letter that fits without its timeline keeps its bytes.
func TestRecordRejection_ShorterHistory(t *testing.T) {
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
