package caller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

// peer is a service that records the ids of requests, as "METHOD path: id without the
// client".
type peer struct {
	*httptest.Server
	mu  sync.Mutex
	got []string
}

func newPeer(t *testing.T, handler http.HandlerFunc) *peer {
	p := &peer{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line := r.Method + " " + r.URL.Path + ": none"
		if values, ok := r.Header[exactlyonce.Header]; ok {
			id, err := parseID(strings.Join(values, ", "))
			if err != nil {
				line = err.Error()
			} else {
				line = fmt.Sprintf("%s %s: %d %q attempt %d first %d", r.Method, r.URL.Path, id.Sequence, id.Step, id.Attempt, id.First)
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		p.mu.Lock()
		p.got = append(p.got, line)
		p.mu.Unlock()
		if handler != nil {
			handler(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *peer) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

// clientFor returns a client that tracks requests to endpoints.
func clientFor(t *testing.T, base http.RoundTripper, endpoints ...string) *http.Client {
	own := &http.Transport{}
	if base == nil {
		base = own
	}
	c := &http.Client{Transport: Transport(base, endpoints...)}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// noted is a body that records whether it was closed.
type noted struct {
	io.Reader
	closed bool
}

func (n *noted) Close() error { n.closed = true; return nil }

func post(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("body"))
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return httpretry.CheckResponse(resp)
}

func TestTransportSendsIDs(t *testing.T) {
	p, other := newPeer(t, nil), newPeer(t, nil)
	c := clientFor(t, nil, p.URL+"/charges", p.URL+"/refunds/")
	tracker := NewTracker(Config{})
	a, b := tracker.Accepted(t.Context(), nil, false), tracker.Accepted(t.Context(), nil, false)
	ctx := tracker.AttemptStarted(b, 1)
	require.NoError(t, post(ctx, c, p.URL+"/charges"))
	require.NoError(t, post(WithStep(ctx, "back"), c, p.URL+"/refunds/7"))
	require.NoError(t, post(WithStep(ctx, "back"), c, p.URL+"/refunds/7")) // from a function that repeats the request itself
	require.NoError(t, post(ctx, c, p.URL+"/mails"))
	require.NoError(t, post(t.Context(), c, p.URL+"/mails"))
	require.NoError(t, post(ctx, c, other.URL+"/charges"))
	tracker.Ended(a, observe.Ending{})
	require.NoError(t, post(tracker.AttemptStarted(b, 2), c, p.URL+"/charges"))
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete} {
		req, err := http.NewRequestWithContext(WithStep(ctx, method), method, p.URL+"/charges", nil)
		require.NoError(t, err)
		resp, err := c.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
	}
	require.Equal(t, []string{
		`POST /charges: 2 "" attempt 1 first 1`,
		`POST /refunds/7: 2 "back" attempt 2 first 1`,
		`POST /refunds/7: 2 "back" attempt 3 first 1`,
		`POST /mails: none`,
		`POST /mails: none`,
		`POST /charges: 2 "" attempt 4 first 2`,
		`GET /charges: none`,
		`HEAD /charges: none`,
		`OPTIONS /charges: none`,
		`PUT /charges: 2 "PUT" attempt 5 first 2`,
		`DELETE /charges: 2 "DELETE" attempt 6 first 2`,
	}, p.requests())
	require.Equal(t, []string{`POST /charges: none`}, other.requests())
}

// The caller's request is unchanged, as http.RoundTripper requires.
func TestTransportChangesNoRequest(t *testing.T) {
	p := newPeer(t, nil)
	c := clientFor(t, nil, p.URL+"/charges")
	tracker := NewTracker(Config{})
	ctx := tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1)
	for _, path := range []string{"/charges", "/mails"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+path, nil)
		require.NoError(t, err)
		req.Header.Set(exactlyonce.Header, "copied from somewhere")
		resp, err := c.Transport.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.Header{exactlyonce.Header: {"copied from somewhere"}}, req.Header)
		require.Equal(t, ctx, req.Context())
		if path == "/charges" {
			require.Same(t, req, resp.Request)
		}
	}
	req := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: strings.TrimPrefix(p.URL, "http://"), Path: "/charges"}}
	resp, err := c.Transport.RoundTrip(req.WithContext(WithStep(ctx, "no-header")))
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, []string{
		`POST /charges: 1 "" attempt 1 first 1`, `POST /mails: none`, `POST /charges: 1 "no-header" attempt 2 first 1`,
	}, p.requests(), "and an id that comes from elsewhere is not sent on")
}

// A request that cannot have an id is not sent, and returns an error.
func TestTransportRefusesRequestsWithoutAnID(t *testing.T) {
	p := newPeer(t, nil)
	c := clientFor(t, nil, p.URL+"/charges")
	tracker := NewTracker(Config{})
	element := tracker.Accepted(t.Context(), nil, false)
	ctx := tracker.AttemptStarted(element, 1)
	require.NoError(t, post(ctx, c, p.URL+"/charges"))
	for _, bad := range []context.Context{t.Context(), element, ctx, WithStep(ctx, "a b")} {
		body := &noted{Reader: strings.NewReader("body")}
		req, err := http.NewRequestWithContext(bad, http.MethodPost, p.URL+"/charges", body)
		require.NoError(t, err)
		_, err = c.Do(req)
		require.True(t, errors.Is(err, ErrNoID) || errors.Is(err, exactlyonce.ErrInvalid), "%v", err)
		stage, ok := errors.AsType[*predicates.StageError](err)
		require.True(t, ok)
		require.Equal(t, predicates.ClientDispatch, stage.Stage)
		require.True(t, body.closed)
	}
	require.Len(t, p.requests(), 1)
}

// The identity never goes to another host through redirects (X1).
func TestRedirects(t *testing.T) {
	var other *peer
	handler := func(w http.ResponseWriter, r *http.Request) {
		var to string
		status := http.StatusTemporaryRedirect
		switch r.URL.Path {
		case "/charges/moved":
			to = "/charges/here"
		case "/charges/twice":
			to = "/charges/moved"
		case "/charges/unnamed":
			to = "/mails"
		case "/charges/see":
			to, status = "/charges/here", http.StatusSeeOther
		case "/charges/away":
			to = other.URL + "/charges/here"
		case "/charges/there-and-back":
			to = other.URL + "/charges/back"
		case "/charges/back":
			to = "http://" + r.Header.Get("Home") + "/charges/here"
		default:
			return
		}
		http.Redirect(w, r, to, status)
	}
	p := newPeer(t, handler)
	other = newPeer(t, handler)
	for path, want := range map[string]struct{ here, there []string }{
		"moved":          {[]string{`POST moved: 1 "" attempt 1`, `POST here: 1 ":redirect1" attempt 2`}, nil},
		"twice":          {[]string{`POST twice: 1 "" attempt 1`, `POST moved: 1 ":redirect1" attempt 2`, `POST here: 1 ":redirect2" attempt 3`}, nil},
		"unnamed":        {[]string{`POST unnamed: 1 "" attempt 1`, `POST /mails: none`}, nil},
		"see":            {[]string{`POST see: 1 "" attempt 1`, `GET here: none`}, nil},
		"away":           {[]string{`POST away: 1 "" attempt 1`}, []string{`POST here: none`}},
		"there-and-back": {[]string{`POST there-and-back: 1 "" attempt 1`, `POST here: none`}, []string{`POST back: none`}},
	} {
		t.Run(path, func(t *testing.T) {
			p.got, other.got = nil, nil
			c := clientFor(t, nil, p.URL+"/charges/", other.URL+"/charges/") // both are named
			tracker := NewTracker(Config{})
			req, err := http.NewRequestWithContext(tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1),
				http.MethodPost, p.URL+"/charges/"+path, strings.NewReader("body"))
			require.NoError(t, err)
			req.Header.Set("Home", strings.TrimPrefix(p.URL, "http://"))
			resp, err := c.Do(req)
			require.NoError(t, err)
			resp.Body.Close()
			short := func(lines []string) (out []string) {
				for _, line := range lines {
					line, _, _ = strings.Cut(line, " first")
					out = append(out, strings.Replace(line, "/charges/", "", 1))
				}
				return out
			}
			require.Equal(t, want.here, short(p.requests()))
			require.Equal(t, want.there, short(other.requests()))
		})
	}
}

// A redirect makes the step longer. A step that becomes too long is replaced by its hash.
func TestRedirectsOfALongStep(t *testing.T) {
	p := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/charges/moved" {
			http.Redirect(w, r, "/charges/here", http.StatusTemporaryRedirect)
		}
	})
	c := clientFor(t, nil, p.URL+"/charges/")
	for _, length := range []int{54, 55, 64} {
		p.got = nil
		tracker, step := NewTracker(Config{}), strings.Repeat("s", length)
		after := step
		if length > 54 {
			after = fmt.Sprintf("%x", sha256.Sum256([]byte(step)))[:32]
		}
		ctx := WithStep(tracker.AttemptStarted(tracker.Accepted(t.Context(), nil, false), 1), step)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/charges/moved", strings.NewReader("body"))
		require.NoError(t, err)
		resp, err := c.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Contains(t, p.requests()[0], strconv.Quote(step))
		require.Contains(t, p.requests()[1], strconv.Quote(after+":redirect1"))
	}
}

// twice is a base that sends each request twice, like hedges and retries, and returns the
// second answer.
type twice struct{ base http.RoundTripper }

func (h twice) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := h.base.RoundTrip(req.Clone(req.Context()))
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	again := req.Clone(req.Context())
	again.Body, _ = req.GetBody()
	return h.base.RoundTrip(again)
}

// Hedges and retries send the same request.
func TestHedges(t *testing.T) {
	p := newPeer(t, nil)
	endpoint := p.URL + "/charges"
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	tracker := NewTracker(Config{})
	for name, tt := range map[string]struct {
		transport http.RoundTripper
		step      string
		want      []string
		err       error
	}{
		"below":        {Transport(twice{base}, endpoint), "", []string{`"" attempt 1`, `"" attempt 1`}, nil},
		"between":      {Transport(twice{Transport(base, endpoint)}, endpoint), "", []string{`"" attempt 2`, `"" attempt 3`}, nil},
		"around":       {twice{Transport(base, endpoint)}, "charge", []string{`"charge" attempt 1`, `"charge" attempt 2`}, nil},
		"without step": {twice{Transport(base, endpoint)}, "", []string{`"" attempt 1`}, ErrNoID},
		"inner names another": {
			Transport(twice{Transport(base, p.URL+"/refunds")}, endpoint), "", []string{"none", "none"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p.got = nil
			element := tracker.Accepted(t.Context(), nil, false)
			defer tracker.Ended(element, observe.Ending{})
			ctx := WithStep(tracker.AttemptStarted(element, 1), tt.step)
			require.ErrorIs(t, post(ctx, &http.Client{Transport: tt.transport}, endpoint), tt.err)
			var got []string
			for _, line := range p.requests() {
				line, _, _ = strings.Cut(strings.TrimPrefix(line, "POST /charges: "), " first")
				got = append(got, line[max(0, strings.Index(line, `"`)):])
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// Answers of the server's tracker become errors; answers of its service do not.
func TestAnswersOfTheTracker(t *testing.T) {
	for _, tt := range []struct {
		status int
		result string
		class  error
	}{
		{http.StatusGone, oncewire.Stale, exactlyonce.ErrStale},
		{http.StatusConflict, oncewire.Mismatch, exactlyonce.ErrMismatch},
		{http.StatusUnprocessableEntity, oncewire.Mismatch, exactlyonce.ErrMismatch},
		{http.StatusConflict, oncewire.InProgress, exactlyonce.ErrInProgress},
		{http.StatusServiceUnavailable, oncewire.Full, exactlyonce.ErrFull},
		{http.StatusBadRequest, oncewire.Invalid, exactlyonce.ErrInvalid},
		{http.StatusCreated, oncewire.Replayed, nil},
		{http.StatusNotFound, oncewire.Replayed, nil},
		{http.StatusGone, "", nil},
		{http.StatusConflict, "", nil},
		{http.StatusConflict, "something else", nil},
		{http.StatusOK, oncewire.Stale, nil},
	} {
		t.Run(fmt.Sprintf("%d %s", tt.status, tt.result), func(t *testing.T) {
			p := newPeer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "2")
				if tt.result != "" {
					w.Header().Set(oncewire.Result, tt.result)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
			})
			c := clientFor(t, nil, p.URL+"/charges")
			tracker := NewTracker(Config{})
			var stages []predicates.Stage
			reported := predicates.WithStageReporter(t.Context(), func(s predicates.Stage) { stages = append(stages, s) })
			ctx := WithStep(tracker.AttemptStarted(tracker.Accepted(reported, nil, false), 1), "charge")
			err := post(ctx, c, p.URL+"/charges")
			if tt.class == nil {
				e, ok := errors.AsType[*httpretry.StatusError](err)
				require.Equal(t, tt.status >= 400, ok)
				require.True(t, !ok || e.StatusCode == tt.status)
				require.Len(t, stages, 1)
				return
			}
			require.ErrorIs(t, err, tt.class)
			require.ErrorContains(t, err, tt.class.Error()+`: element 1, step "charge": POST `+p.URL+"/charges: http status "+fmt.Sprint(tt.status))
			for _, other := range classes {
				require.Equal(t, other == tt.class, errors.Is(err, other))
			}
			stage, ok := errors.AsType[*predicates.StageError](err)
			require.True(t, ok)
			require.Equal(t, predicates.ResponseReceived, stage.Stage)
			status, ok := errors.AsType[*httpretry.StatusError](err)
			if tt.class == exactlyonce.ErrStale {
				require.False(t, ok, "410 would be a refusal without effect")
				require.Len(t, stages, 2, "reported as not tracked (X1)")
				return
			}
			require.True(t, ok)
			require.Equal(t, tt.status, status.StatusCode)
			require.True(t, status.HasDelay)
			require.Len(t, stages, 1)
		})
	}
}
