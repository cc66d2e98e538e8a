package docs_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
)

// acceptOnce returns a handler that remembers keys after their messages are done.
func acceptOnce(engine *sqlite.Engine, sales *delivery.Queue[sale], userOf func(*http.Request) (string, bool)) http.Handler {
	requests := keys.New(engine.DB().Writer(), keys.SQLite, keys.Config{}) // Migrate makes its tables
	put := requests.Operation("put_sale", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		var s sale
		if err := json.Unmarshal(run.Body, &s); err != nil || s.ID == "" { // such as null or {}
			return keys.JSON(http.StatusBadRequest, "the body is not a sale")
		}
		return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
			if err := sqlite.PutTx(ctx, tx, sales, s, delivery.ID(run.ID())); err != nil {
				return exactlyonce.Response{}, err
			}
			return keys.JSON(http.StatusAccepted, run.ID())
		})
	})
	return put.Handler(keys.HandlerConfig{User: userOf, MismatchStatus: http.StatusUnprocessableEntity})
}

func Example_httpInput() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "httpinput"))
	defer os.RemoveAll(dir)
	engine := must(sqlite.Open(ctx, filepath.Join(dir, "shop.db")))
	defer engine.Close()
	check(keys.New(engine.DB().Writer(), keys.SQLite, keys.Config{}).Migrate(ctx))
	sales := delivery.NewQueue[sale](engine, "sales")
	handler := acceptOnce(engine, sales, func(*http.Request) (string, bool) { return "alice", true })
	post := func(key, body string) int {
		r := httptest.NewRequest(http.MethodPost, "/sales", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}

	fmt.Println(post("sale-17", `{"id": "17", "cents": 300}`))
	for _, m := range must(sales.Receive(ctx, 1)) {
		fmt.Println("sold", m.Value.ID)
		m.Ack()
	}
	check(sales.Close(ctx))
	fmt.Println(post("sale-17", `{"id": "17", "cents": 300}`), post("sale-17", `{"id": "17", "cents": 400}`))
	fmt.Println(post("sale-18", "null"), "for null")
	fmt.Println(must(sales.Counts(ctx)).Waiting, "waiting")
	// Output:
	// 202
	// sold 17
	// 202 422
	// 400 for null
	// 0 waiting
}
