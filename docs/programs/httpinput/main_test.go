package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

func packed(t *testing.T, body string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(body))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func TestAccept(t *testing.T) {
	const tea = `{"item":"tea","cents":300}`
	for name, c := range map[string]struct {
		key, encoding, body string
		status, waiting     int
	}{
		"an order":                      {"k", "", tea, http.StatusAccepted, 1},
		"identity":                      {"k", "identity", tea, http.StatusAccepted, 1},
		"packed":                        {"k", "gzip", packed(t, tea), http.StatusAccepted, 1},
		"without a key":                 {"", "", tea, http.StatusBadRequest, 0},
		"no order":                      {"k", "", "tea", http.StatusBadRequest, 0},
		"null":                          {"k", "", "null", http.StatusBadRequest, 0},
		"an empty object":               {"k", "", "{}", http.StatusBadRequest, 0},
		"without a price":               {"k", "", `{"item":"tea"}`, http.StatusBadRequest, 0},
		"not packed":                    {"k", "gzip", tea, http.StatusBadRequest, 0},
		"packed, and cut off":           {"k", "gzip", packed(t, tea)[:15], http.StatusBadRequest, 0},
		"packed in another way":         {"k", "br", tea, http.StatusUnsupportedMediaType, 0},
		"packed twice":                  {"k", "gzip, gzip", tea, http.StatusUnsupportedMediaType, 0},
		"too large":                     {"k", "", strings.Repeat(" ", maxBody+1), http.StatusRequestEntityTooLarge, 0},
		"too large when it is unpacked": {"k", "gzip", packed(t, strings.Repeat(" ", 100*maxBody)), http.StatusRequestEntityTooLarge, 0},
		"as large as allowed, unpacked": {"k", "gzip", packed(t, tea+strings.Repeat(" ", maxBody-len(tea))), http.StatusAccepted, 1},
		"an id that is too long":        {strings.Repeat("k", 5000), "", tea, http.StatusUnprocessableEntity, 0},
	} {
		t.Run(name, func(t *testing.T) {
			orders := delivery.NewQueue[order](memory.Open(), "orders")
			r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(c.body))
			r.Header.Set("Idempotency-Key", c.key)
			if c.encoding != "" {
				r.Header.Set("Content-Encoding", c.encoding)
			}
			w := httptest.NewRecorder()
			accept(orders)(w, r)
			require.Equal(t, c.status, w.Code, w.Body)
			require.Equal(t, c.status == http.StatusUnsupportedMediaType, w.Header().Get("Accept-Encoding") == "gzip")
			counts, err := orders.Counts(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.waiting, counts.Waiting)
		})
	}
}

// A key that a client uses for two orders by mistake loses neither. A repeated request
// has the same bytes: an order that is encoded again is another order.
func TestAccept_SameKey(t *testing.T) {
	orders := delivery.NewQueue[order](memory.Open(), "orders")
	for _, body := range []string{`{"item":"tea","cents":300}`, `{"item":"tea","cents":300}`, `{"item":"coffee","cents":400}`, `{"item":"tea", "cents":300}`} {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		accept(orders)(w, r)
		require.Equal(t, http.StatusAccepted, w.Code)
	}
	counts, err := orders.Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, counts.Waiting)
}

// down is an engine that cannot be reached.
type down struct{ store.Engine }

func (down) Put(context.Context, string, ...store.Message) error {
	return errors.New("connection refused")
}

func TestAccept_EngineIsDown(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"item":"tea","cents":300}`))
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	accept(delivery.NewQueue[order](down{memory.Open()}, "orders"))(w, r)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}
