package httpin_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/httpin"
	"github.com/weirflow/weir/delivery/store"
)

// Orders come in by HTTP, and a worker takes them out of the queue.
func Example() {
	type Order struct{ Item string }
	s := store.NewMemory(clock.New(), 0) // in a service: SQLite or PostgreSQL
	defer func() { _ = s.Close() }()

	orders := store.NewSink(s, "orders", codec.JSON[Order]())
	mux := http.NewServeMux()
	mux.Handle("POST /orders", httpin.NewHandler(orders, codec.JSON[Order](), nil))
	request := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"Item":"tea"}`))
	request.Header.Set("Idempotency-Key", "order-17")
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, request)
	fmt.Print(answer.Code, " ", answer.Body)

	source := store.NewSource(s, "orders", "dead", codec.JSON[Order]())
	messages, err := source.Receive(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(messages[0].Meta().ID, messages[0].Value.Item)
	messages[0].Ack()
	fmt.Println(source.Close(context.Background()))
	// Output:
	// 202 {"id":"order-17"}
	// order-17 tea
	// <nil>
}
