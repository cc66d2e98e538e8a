package httpin_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/httpin"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

type order struct{ N int }

// sinkFunc is a sink of the test's own.
type sinkFunc func(ctx context.Context, m message.Message[order]) error

func (f sinkFunc) PutAll(ctx context.Context, ms []message.Message[order]) error {
	return f(ctx, ms[0])
}

func quiet() httpin.Option { return httpin.WithLogger(slog.New(slog.DiscardHandler)) }

func post(body string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The same id again is the same message.
func TestAccepted(t *testing.T) {
	s := memory.Open()
	sink := delivery.NewQueue[order](s, "orders")
	stored := 0
	h := httpin.NewHandler(sinkFunc(func(ctx context.Context, m message.Message[order]) error {
		err := sink.PutAll(ctx, []message.Message[order]{m})
		stored++
		return err
	}), codec.JSON[order](), nil)
	for range 2 {
		w := serve(h, post(`{"N":5}`, "Idempotency-Key", "k1", "Traceparent", "00-01", "Cookie", "secret"))
		require.Equal(t, http.StatusAccepted, w.Code)
		require.Equal(t, `{"id":"k1"}`+"\n", w.Body.String())
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	}
	require.Equal(t, 1, stored, "the second one was known")
	var ids []string
	for range 2 {
		w := serve(h, post(`{"N":6}`))
		require.Equal(t, http.StatusAccepted, w.Code)
		var answer struct{ ID string }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		ids = append(ids, answer.ID)
	}
	require.NotEqual(t, ids[0], ids[1], "without a key, each is a message")
	entries, err := s.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.Equal(t, "k1", entries[0].Meta.ID)
	require.Equal(t, map[string]string{"Traceparent": "00-01"}, entries[0].Meta.Headers)
	require.JSONEq(t, `{"N":5}`, string(entries[0].Payload))
}

// The first request with a key counts, also when its message is done; another one is refused, and nothing of it is lost in silence.
func TestIdempotencyKey(t *testing.T) {
	var got []int
	var fails error
	h := httpin.NewHandler(sinkFunc(func(_ context.Context, m message.Message[order]) error {
		got = append(got, m.Value.N)
		return fails
	}), codec.JSON[order](), nil, quiet())
	key := func(k string, more ...string) []string { return append([]string{"Idempotency-Key", k}, more...) }

	fails = errors.New("down")
	require.Equal(t, http.StatusServiceUnavailable, serve(h, post(`{"N":1}`, key("a")...)).Code)
	require.Equal(t, http.StatusUnprocessableEntity, serve(h, post(`{"N":2}`, key("a")...)).Code, "the first one may be safe")
	fails = nil
	for range 3 {
		require.Equal(t, http.StatusAccepted, serve(h, post(`{"N":1}`, key("a", "Traceparent", rand.Text())...)).Code)
	}
	for _, r := range []*http.Request{
		post(`{"N":2}`, key("a")...), post(`{"N":1} `, key("a")...), post(`{"N":1}`, key("a", "Content-Type", "text/plain")...),
	} {
		require.Equal(t, http.StatusUnprocessableEntity, serve(h, r).Code)
	}
	other := httptest.NewRequest(http.MethodPost, "/orders?for=ann", strings.NewReader(`{"N":1}`))
	other.Header.Set("Idempotency-Key", "a")
	require.Equal(t, http.StatusUnprocessableEntity, serve(h, other).Code)
	require.Equal(t, http.StatusAccepted, serve(h, post(`{"N":2}`, key("b")...)).Code)
	for range 2 {
		require.Equal(t, http.StatusAccepted, serve(h, post(`{"N":3}`)).Code, "without a key, each is a message")
	}
	require.Equal(t, []int{1, 1, 2, 3, 3}, got)

	// The key of one client is not that of another one, if meta says so.
	scoped := httpin.NewHandler(sinkFunc(func(context.Context, message.Message[order]) error { return nil }), codec.JSON[order](),
		func(r *http.Request, _ order) message.Meta {
			return message.Meta{ID: r.Header.Get("Client") + "/" + r.Header.Get("Idempotency-Key")}
		}, quiet())
	require.Equal(t, http.StatusAccepted, serve(scoped, post(`{"N":1}`, key("a", "Client", "ann")...)).Code)
	require.Equal(t, http.StatusAccepted, serve(scoped, post(`{"N":2}`, key("a", "Client", "bob")...)).Code)
	require.Equal(t, http.StatusUnprocessableEntity, serve(scoped, post(`{"N":2}`, key("a", "Client", "ann")...)).Code)
}

// eventWriter notes when it is answered.
type eventWriter struct {
	*httptest.ResponseRecorder
	events *[]string
}

func (w eventWriter) WriteHeader(status int) {
	*w.events = append(*w.events, http.StatusText(status))
	w.ResponseRecorder.WriteHeader(status)
}

// D1: first stored, then answered.
func TestStoredBeforeAnswered(t *testing.T) {
	var events []string
	h := httpin.NewHandler(sinkFunc(func(context.Context, message.Message[order]) error {
		events = append(events, "stored")
		return nil
	}), codec.JSON[order](), nil)
	h.ServeHTTP(eventWriter{httptest.NewRecorder(), &events}, post(`{"N":1}`))
	require.Equal(t, []string{"stored", "Accepted"}, events)
}

func TestMeta(t *testing.T) {
	var got message.Meta
	h := httpin.NewHandler(sinkFunc(func(_ context.Context, m message.Message[order]) error { got = m.Meta(); return nil }), codec.JSON[order](),
		func(r *http.Request, v order) message.Meta {
			return message.Meta{ID: "ann/" + r.Header.Get("Idempotency-Key"), Key: string(rune('0' + v.N)), Headers: map[string]string{"a": "b"}}
		})
	require.Equal(t, http.StatusAccepted, serve(h, post(`{"N":5}`, "Idempotency-Key", "k1", "Traceparent", "00-01")).Code)
	require.Equal(t, message.Meta{ID: "ann/k1", Key: "5", Headers: map[string]string{"a": "b"}}, got)
}

func TestRefused(t *testing.T) {
	errFull := errors.New("the disk of host 7 is full")
	taken := 0
	sink := func(f func(m message.Message[order]) error) sinkFunc {
		return func(_ context.Context, m message.Message[order]) error { taken++; return f(m) }
	}
	fine := sink(func(message.Message[order]) error { return nil })
	for name, c := range map[string]struct {
		sink    sinkFunc
		request *http.Request
		status  int
		taken   int
	}{
		"method":     {fine, httptest.NewRequest(http.MethodGet, "/orders", nil), http.StatusMethodNotAllowed, 0},
		"no JSON":    {fine, post(`{`), http.StatusBadRequest, 0},
		"too large":  {fine, post(`{"N":` + strings.Repeat("1", 100) + `}`), http.StatusRequestEntityTooLarge, 0},
		"long key":   {fine, post(`{"N":1}`, "Idempotency-Key", strings.Repeat("k", 1025)), http.StatusBadRequest, 0},
		"full":       {sink(func(message.Message[order]) error { return errFull }), post(`{"N":1}`), http.StatusServiceUnavailable, 1},
		"acked, bad": {sink(func(m message.Message[order]) error { m.Ack(); return errFull }), post(`{"N":1}`), http.StatusServiceUnavailable, 1},
		"rejected":   {sink(func(m message.Message[order]) error { m.Reject(errFull); return nil }), post(`{"N":1}`), http.StatusUnprocessableEntity, 1},
		"never fits": {sink(func(message.Message[order]) error { return fmt.Errorf("q: %w", message.ErrRefused) }), post(`{"N":1}`), http.StatusUnprocessableEntity, 1},
		"nacked":     {sink(func(m message.Message[order]) error { m.Nack(0); return nil }), post(`{"N":1}`), http.StatusServiceUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			taken = 0
			w := serve(httpin.NewHandler(c.sink, codec.JSON[order](), nil, httpin.WithMaxBytes(100), quiet()), c.request)
			require.Equal(t, c.status, w.Code)
			require.Equal(t, c.taken, taken)
			require.NotContains(t, w.Body.String(), "host 7", "what is inside stays inside")
			require.Equal(t, c.status == http.StatusServiceUnavailable, w.Header().Get("Retry-After") != "")
			require.Equal(t, c.status == http.StatusMethodNotAllowed, w.Header().Get("Allow") == http.MethodPost)
		})
	}
	broken := codec.Func(func(b []byte, _ order) ([]byte, error) { return b, nil }, func([]byte) (order, error) { panic("boom") })
	require.Equal(t, http.StatusBadRequest, serve(httpin.NewHandler(fine, broken, nil, quiet()), post("")).Code)
}

func TestArguments(t *testing.T) {
	sink := sinkFunc(func(context.Context, message.Message[order]) error { return nil })
	require.PanicsWithValue(t, "httpin: NewHandler: nil sink", func() { httpin.NewHandler(nil, codec.JSON[order](), nil) })
	require.PanicsWithValue(t, "httpin: NewHandler: nil codec", func() { httpin.NewHandler[order](sink, nil, nil) })
	require.PanicsWithValue(t, "httpin: NewHandler: option 1 is nil", func() { httpin.NewHandler(sink, codec.JSON[order](), nil, nil) })
	require.PanicsWithValue(t, "httpin: WithMaxBytes: 0 is less than 1", func() { httpin.WithMaxBytes(0) })
	require.PanicsWithValue(t, "httpin: WithLogger: nil logger", func() { httpin.WithLogger(nil) })
}

// A queue whose database hangs gets an answer, too: there was none, for as long as the client waited.
func TestSinkThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := httpin.NewHandler(sinkFunc(func(ctx context.Context, _ message.Message[order]) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}), codec.JSON[order](), nil, quiet())
		begun := time.Now()
		w := serve(h, post(`{"N":5}`))
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
		require.Equal(t, 10*time.Second, time.Since(begun))
	})
}

// D2: requests with one key go into the sink one after the other, so that they make one message; the next one does only if the first has
// failed.
func TestRequestsWithOneKeyAtOnce(t *testing.T) {
	key := []string{"Idempotency-Key", "k1"}
	for name, c := range map[string]struct {
		fails error
		puts  int
	}{"stored": {nil, 1}, "failed": {errors.New("down"), 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				puts, release := 0, make(chan error)
				h := httpin.NewHandler(sinkFunc(func(context.Context, message.Message[order]) error {
					puts++
					return <-release
				}), codec.JSON[order](), nil, quiet())
				codes := make(chan int, 3)
				for range 3 {
					go func() { codes <- serve(h, post(`{"N":1}`, key...)).Code }()
				}
				synctest.Wait()
				require.Equal(t, http.StatusUnprocessableEntity, serve(h, post(`{"N":2}`, key...)).Code, "another request does not wait")
				want := []int{http.StatusAccepted, http.StatusAccepted, http.StatusAccepted}
				if release <- c.fails; c.fails != nil {
					want[0] = http.StatusServiceUnavailable
					release <- nil
				}
				require.ElementsMatch(t, want, []int{<-codes, <-codes, <-codes})
				require.Equal(t, c.puts, puts)
			})
		})
	}
	t.Run("hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan error)
			h := httpin.NewHandler(sinkFunc(func(context.Context, message.Message[order]) error { return <-release }), codec.JSON[order](), nil, quiet())
			go serve(h, post(`{"N":1}`, key...))
			synctest.Wait()
			begun := time.Now()
			require.Equal(t, http.StatusServiceUnavailable, serve(h, post(`{"N":1}`, key...)).Code)
			require.Equal(t, 10*time.Second, time.Since(begun))
			release <- nil
		})
	})
}

// D1: a client that goes away while its message is stored does not keep the handler from knowing that it is.
func TestClientThatGoesAway(t *testing.T) {
	puts := 0
	gone, cancel := context.WithCancel(t.Context())
	h := httpin.NewHandler(sinkFunc(func(ctx context.Context, _ message.Message[order]) error {
		puts++
		cancel()
		return ctx.Err()
	}), codec.JSON[order](), nil, quiet())
	request := func() *http.Request { return post(`{"N":1}`, "Idempotency-Key", "k1") }
	serve(h, request().WithContext(gone))
	require.Equal(t, http.StatusAccepted, serve(h, request()).Code)
	require.Equal(t, 1, puts)
}
