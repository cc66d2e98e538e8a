// Command charges has the client and the server of charges that are made once: a service
// with its books in charges.db, and a worker that calls it for orders from a queue in
// orders.db. Kill either, and start it again.
//
//	charges serve
//	charges work 1 2 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// charge writes a charge and the answer to its request in one transaction.
func charge(records *sqliterecords.Records) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		order, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request, _ := exactlyonce.RequestFromContext(r.Context())
		answer, err := records.Run(r.Context(), request, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO charges (number) VALUES (?)", string(order))
			response := exactlyonce.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "charged %s", order)}
			return response.Encode(), err
		})
		var response exactlyonce.Response
		if err == nil {
			err = response.Decode(answer)
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // rolled back
			return
		}
		time.Sleep(50 * time.Millisecond) // time to be killed in, after the charge and before its answer
		response.Send(w)
	}
}

func serve(ctx context.Context, address string) error {
	db, err := sqlite.OpenDB(ctx, "charges.db")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := sqliterecords.New(db).Migrate(ctx); err != nil { // the tables of the records
		return err
	}
	if _, err := db.Writer().ExecContext(ctx, "CREATE TABLE IF NOT EXISTS charges (number TEXT)"); err != nil {
		return err
	}
	records := sqliterecords.New(db)
	results := server.NewResults(server.Config{Records: records, AnswerAge: 24 * time.Hour})
	defer results.Close(context.Background())
	user := func(*http.Request) (string, bool) { return "shop", true } // in your service: the user that it has authenticated
	service := &http.Server{
		Handler:           results.Handler(charge(records), server.HandlerConfig{Scope: user, Required: true}),
		ReadHeaderTimeout: 5 * time.Second,
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	context.AfterFunc(ctx, func() { service.Shutdown(context.Background()) }) //nolint:errcheck // Serve returns
	if err := service.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// sender returns the function of the worker: it asks the service at endpoint to charge an
// order.
func sender(endpoint string) func(ctx context.Context, order string) (string, error) {
	client := &http.Client{Transport: caller.Transport(nil, endpoint)} // adds the ids
	return func(ctx context.Context, order string) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(order))
		if err != nil {
			return "", err
		}
		response, err := client.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		if err := httpretry.CheckResponse(response); err != nil { // a status of 400 and above is an error with a reason
			return "", err
		}
		receipt, err := io.ReadAll(response.Body)
		return string(receipt), err
	}
}

func work(ctx context.Context, address string, secret []byte, numbers ...string) error {
	engine, err := sqlite.Open(ctx, "orders.db")
	if err != nil {
		return err
	}
	defer engine.Close()
	orders := delivery.NewQueue[string](engine, "orders",
		delivery.RetryAfter(time.Minute, time.Hour),
		delivery.WithIdempotencyWindow(23*time.Hour)) // the service keeps its answers for a day: calls in doubt may wait, too
	receipts := delivery.NewQueue[string](engine, "receipts")
	for _, n := range numbers {
		if err := orders.Put(ctx, n, delivery.ID(n)); err != nil {
			return err
		}
	}
	tracker := caller.NewTracker(caller.Config{Name: "charges", Secret: secret}) // the same in all workers, and after each restart
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(sender("http://"+address+"/")), 10*time.Second, 4,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithObserver(tracker),
		asyncop.WithFailureSink(orders.TakeFailure))
	_, err = delivery.Run(ctx, orders, op, receipts)
	return err
}

func main() {
	address := flag.String("address", "127.0.0.1:8080", "the `address` of the service")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch flag.Arg(0) {
	case "serve":
		err = serve(ctx, *address)
	case "work":
		secret := os.Getenv("CHARGES_SECRET")
		if len(secret) < 16 {
			log.Fatal("CHARGES_SECRET must have 16 bytes or more, which are random")
		}
		err = work(ctx, *address, []byte(secret), flag.Args()[1:]...)
	default:
		err = errors.New("say serve or work")
	}
	if err != nil {
		log.Fatal(err)
	}
}
