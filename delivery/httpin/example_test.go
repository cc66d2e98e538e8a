package httpin_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/httpin"
	"github.com/weirflow/weir/delivery/memory"
)

// Orders come in by HTTP, and a worker takes them out of the queue.
func Example() {
	type Order struct{ Item string }
	s := memory.Open() // in a service: SQLite or PostgreSQL
	defer func() { _ = s.Close() }()

	orders := delivery.NewQueue[Order](s, "orders")
	mux := http.NewServeMux()
	mux.Handle("POST /orders", httpin.NewHandler(orders, codec.JSON[Order](), nil))
	request := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"Item":"tea"}`))
	request.Header.Set("Idempotency-Key", "order-17")
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, request)
	fmt.Print(answer.Code, " ", answer.Body)

	messages, err := orders.Receive(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(messages[0].Meta().ID, messages[0].Value.Item)
	messages[0].Ack()
	fmt.Println(orders.Close(context.Background()))
	// Output:
	// 202 {"id":"order-17"}
	// order-17 tea
	// <nil>
}
