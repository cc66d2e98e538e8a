// Command enqueue is an HTTP service that puts orders into the queue of a worker. It
// sends one request to itself and ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/sqlite"
)

type order struct{ Number string }

func enqueue(orders *delivery.Queue[order]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o order
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := orders.Put(r.Context(), o, delivery.ID(o.Number)); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted) // the order is on disk
	}
}

func main() {
	ctx := context.Background()
	engine, err := sqlite.Open(ctx, "shop.db")
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	orders := delivery.NewQueue[order](engine, "orders")

	service := httptest.NewServer(enqueue(orders)) // in your program: http.ListenAndServe
	defer service.Close()
	resp, err := http.Post(service.URL, "application/json", strings.NewReader(`{"Number": "17"}`))
	if err != nil {
		log.Print(err)
		return
	}
	defer resp.Body.Close()
	counts, err := orders.Counts(ctx)
	fmt.Println(resp.Status, counts.Waiting, err)
}
