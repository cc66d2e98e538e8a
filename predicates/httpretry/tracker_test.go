package httpretry_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// requests counts the requests in doubt.
type requests int

func (r *requests) ReportStage(predicates.Stage) {}
func (r *requests) ReportSent(bool) bool         { *r++; return true }
func (r *requests) ReportRefused(bool)           { *r-- }

// Answers of a tracker have their own reasons, and Transport knows whether they prove
// that the request had no effect (X1).
func TestAnswersOfATracker(t *testing.T) {
	for _, tt := range []struct {
		status    int
		result    string
		want      string
		rejection bool
		allows    bool // a POST that was not deduplicated
		inDoubt   bool // the request stays in doubt
	}{
		{http.StatusConflict, oncewire.InProgress, "HTTP_409_IN_PROGRESS", false, false, true},
		{http.StatusServiceUnavailable, oncewire.Full, "HTTP_503_TRACKER_FULL", false, true, false},
		{http.StatusGone, oncewire.Stale, "", false, false, true},
		{http.StatusConflict, oncewire.Mismatch, "HTTP_409_CONFLICT", true, true, false},
		{http.StatusUnprocessableEntity, oncewire.Mismatch, "HTTP_422_UNPROCESSABLE_ENTITY", true, true, false},
		{http.StatusBadRequest, oncewire.Invalid, "HTTP_400_BAD_REQUEST", true, true, false},
		{http.StatusConflict, oncewire.Replayed, "HTTP_409_CONFLICT", true, true, false},
		{http.StatusGone, "", "HTTP_410_GONE", true, true, false},
	} {
		t.Run(fmt.Sprint(tt.status, tt.result), func(t *testing.T) {
			base := roundTripper(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: tt.status, Header: http.Header{oncewire.Result: {tt.result}}, Body: http.NoBody}, nil
			})
			report := new(requests)
			ctx := context.WithValue(t.Context(), ctxkey.Stage{}, report)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://example.com/", nil)
			require.NoError(t, err)
			resp, err := httpretry.Transport(base).RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, tt.inDoubt, *report == 1)

			for _, reason := range []predicates.Reason{
				classify(&predicates.Attempt[int]{Err: httpretry.CheckResponse(resp)}),
				classify(&predicates.Attempt[*http.Response]{Results: []*http.Response{resp}}),
			} {
				assert.Equal(t, tt.want, reason.Name())
				assert.Equal(t, tt.rejection, reason.IsRejection())
				assert.Equal(t, tt.allows, reason.AllowsNonIdempotentRetry())
				assert.False(t, reason.AlwaysRetry())
			}
		})
	}
}
