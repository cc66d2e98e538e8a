// Command httpinput is an HTTP service that puts the orders of its clients into a queue.
// It sends an order to itself twice, and ends.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

type order struct {
	Item  string `json:"item"`
	Cents int    `json:"cents"`
}

const (
	maxBody  = 1 << 20          // bytes of a body, both as sent and unpacked
	patience = 10 * time.Second // for the database
)

var errEncoding = errors.New("send the body as it is, or with Content-Encoding: gzip")

// accept answers 202 when the order is safe in the queue.
func accept(orders *delivery.Queue[order]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if key == "" {
			http.Error(w, "send an Idempotency-Key, so that you can send the order again", http.StatusBadRequest)
			return
		}
		body, err := readBody(w, r)
		if err != nil {
			if errors.Is(err, errEncoding) {
				w.Header().Set("Accept-Encoding", "gzip")
			}
			http.Error(w, err.Error(), statusOf(err))
			return
		}
		var o order
		if err := json.Unmarshal(body, &o); err != nil {
			http.Error(w, "the body is not an order: "+err.Error(), http.StatusBadRequest)
			return
		}
		if o.Item == "" || o.Cents <= 0 { // such as null or {}
			http.Error(w, "an order has an item, and a price in cents above 0", http.StatusBadRequest)
			return
		}
		// Not the context of the request: the client may go away while the order is
		// stored.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
		defer cancel()
		// The same key and bytes are the same order, which the queue keeps once.
		id := fmt.Sprintf("%s/%x", key, sha256.Sum256(body))
		err = orders.Put(ctx, o, delivery.ID(id))
		switch {
		case err == nil:
			w.WriteHeader(http.StatusAccepted)
		case errors.Is(err, message.ErrRefused): // such as an id that is too long
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		default: // it may be stored or not
			w.Header().Set("Retry-After", "1")
			http.Error(w, "send the same bytes again, with the same Idempotency-Key", http.StatusServiceUnavailable)
		}
	}
}

// readBody reads a body, and unpacks it. A small body can unpack to a very large one, so
// both are bounded.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	sent := http.MaxBytesReader(w, r.Body, maxBody)
	switch strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")) {
	case "", "identity":
		return io.ReadAll(sent)
	case "gzip":
		unpacked, err := gzip.NewReader(sent)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(io.LimitReader(unpacked, maxBody+1))
		if len(body) > maxBody {
			return nil, &http.MaxBytesError{Limit: maxBody}
		}
		return body, err
	}
	return nil, errEncoding
}

// statusOf returns the status for a body that could not be read.
func statusOf(err error) int {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return http.StatusRequestEntityTooLarge
	}
	if errors.Is(err, errEncoding) {
		return http.StatusUnsupportedMediaType
	}
	return http.StatusBadRequest
}

func main() {
	ctx := context.Background()
	engine, err := sqlite.Open(ctx, "shop.db")
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	orders := delivery.NewQueue[order](engine, "orders")

	service := httptest.NewServer(accept(orders)) // in your program: an http.Server with ReadTimeout
	defer service.Close()
	for range 2 { // the second time as a client that did not get the answer
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, service.URL, bytes.NewBufferString(`{"item": "tea", "cents": 300}`))
		if err != nil {
			log.Print(err)
			return
		}
		request.Header.Set("Idempotency-Key", "order-17")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			log.Print(err)
			return
		}
		_ = response.Body.Close()
		counts, err := orders.Counts(ctx)
		fmt.Println(response.Status, counts.Waiting, err)
	}
}
