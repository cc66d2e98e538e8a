package caller

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// charge is an element that must not be called twice.
type charge string

func (charge) Idempotent() bool { return false }

// loses is a base that loses the answers from a path.
type loses struct {
	base http.RoundTripper
	path string
	left atomic.Int32
}

func (l *loses) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.base.RoundTrip(req)
	if err != nil || req.URL.Path != l.path || l.left.Add(-1) < 0 {
		return resp, err
	}
	resp.Body.Close()
	return nil, io.ErrUnexpectedEOF
}

// A tracked call is repeated after a loss in flight, without any setting, even for an
// element that must not be called twice. Other requests of the call, and STALE, prevent
// that (X1).
func TestTie(t *testing.T) {
	type step struct{ path, step string }
	for name, tt := range map[string]struct {
		steps   []step
		lost    string // path whose first answer is lost
		answer  string // first answer of the tracker
		status  int
		retried bool
		inDoubt bool // in doubt if not retried
	}{
		"not lost":                      {steps: []step{{"/charges", ""}}},
		"lost":                          {steps: []step{{"/charges", ""}}, lost: "/charges", retried: true},
		"not tracked":                   {steps: []step{{"/mails", ""}}, lost: "/mails", inDoubt: true},
		"safe method":                   {steps: []step{{"GET /charges", ""}}, lost: "/charges", inDoubt: true},
		"second of two":                 {steps: []step{{"/charges", "a"}, {"/charges/b", "b"}}, lost: "/charges/b", retried: true},
		"after one that is not tracked": {steps: []step{{"/mails", ""}, {"/charges", ""}}, lost: "/charges", inDoubt: true},
		"before one that is not":        {steps: []step{{"/charges", ""}, {"/mails", ""}}, lost: "/mails", inDoubt: true},
		"after a look":                  {steps: []step{{"GET /mails", ""}, {"/charges", ""}}, lost: "/charges", retried: true},
		"two without a step":            {steps: []step{{"/charges", ""}, {"/charges", ""}}, inDoubt: true},
		"server error":                  {steps: []step{{"/charges", ""}}, status: 500, retried: true},
		"refused by the service":        {steps: []step{{"/charges", ""}}, status: 404},
		"stale":                         {steps: []step{{"/charges", ""}}, answer: oncewire.Stale, status: 410, inDoubt: true},
		"stale after another":           {steps: []step{{"/charges", "a"}, {"/charges/b", "b"}}, answer: oncewire.Stale, status: 410, inDoubt: true},
		"mismatch":                      {steps: []step{{"/charges", ""}}, answer: oncewire.Mismatch, status: 409},
		"in progress":                   {steps: []step{{"/charges", ""}}, answer: oncewire.InProgress, status: 409, retried: true},
		"full":                          {steps: []step{{"/charges", ""}}, answer: oncewire.Full, status: 503, retried: true},
		"invalid":                       {steps: []step{{"/charges", ""}}, answer: oncewire.Invalid, status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			var answered atomic.Int32
			last := tt.steps[len(tt.steps)-1].path
			p := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
				if tt.status == 0 || r.URL.Path != last || answered.Add(1) > 1 {
					return
				}
				if tt.answer != "" {
					w.Header().Set(oncewire.Result, tt.answer)
				}
				w.WriteHeader(tt.status)
			})
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			lossy := &loses{base: base, path: tt.lost}
			lossy.left.Store(1)
			c := &http.Client{Transport: Transport(lossy, p.URL+"/charges", p.URL+"/charges/")}
			tracker := NewTracker(Config{})
			classify := httpretry.Classifier[string]()
			if tt.answer == oncewire.Stale { // even if a policy would retry it
				classify = predicates.Classifiers(classify, predicates.ByException[string](predicates.HasException, predicates.Unknown))
			}
			var failures []asyncop.Failure[charge]
			calls := 0
			op := asyncop.OrderedWaitWithRetry(
				asyncop.Blocking(func(ctx context.Context, in charge) (string, error) {
					calls++
					for _, s := range tt.steps {
						method, path := http.MethodPost, s.path
						if get, ok := strings.CutPrefix(path, "GET "); ok {
							method, path = http.MethodGet, get
						}
						req, err := http.NewRequestWithContext(WithStep(ctx, s.step), method, p.URL+path, nil)
						if err != nil {
							return "", err
						}
						resp, err := c.Do(req)
						if err != nil {
							return "", err
						}
						resp.Body.Close()
						if err := httpretry.CheckResponse(resp); err != nil {
							return "", err
						}
					}
					return string(in), nil
				}), time.Minute, 1, strategies.ReasonAware(classify, nil),
				asyncop.WithObserver(tracker), asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[charge]) error {
					failures = append(failures, f)
					return nil
				}))
			emitted := 0
			for _, err := range op.Results(func(yield func(charge) bool) { yield("a") }) {
				require.NoError(t, err)
				emitted++
			}
			require.NoError(t, op.Wait())
			require.Empty(t, checkList(t, tracker), "the element has ended")
			switch {
			case tt.retried:
				require.Equal(t, []int{2, 1, 0}, []int{calls, emitted, len(failures)}, "%v", failures)
			case name == "not lost":
				require.Equal(t, []int{1, 1, 0}, []int{calls, emitted, len(failures)}, "%v", failures)
			default:
				require.Equal(t, []int{1, 0, 1}, []int{calls, emitted, len(failures)}, "%v", failures)
				require.Equal(t, tt.inDoubt, failures[0].UnsafeToRepeat(), "%v", failures[0].Err)
			}
		})
	}
}
