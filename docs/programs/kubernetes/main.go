// A worker for Kubernetes: it ends in time after SIGTERM, and answers probes.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
)

type order struct{ ID string }

// Idempotent reports that a second call for an order does no harm. Without it, an order
// whose call failed is a dead letter at once.
func (order) Idempotent() bool { return true }

// charge is a placeholder for your call.
func charge(ctx context.Context, o order) (string, error) { return "receipt of " + o.ID, nil }

// open opens the database of the environment, or a file to try the program.
func open(ctx context.Context) (store.Engine, error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return postgres.Open(ctx, url)
	}
	return sqlite.Open(ctx, "orders.db")
}

// probes answers /healthz while the process runs, and /readyz until the worker has to
// stop. Neither asks the database: an outage would restart all workers.
func probes(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if ctx.Err() != nil {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
		}
	})
	return mux
}

func work(ctx context.Context, address string) error {
	engine, err := open(ctx)
	if err != nil {
		return err
	}
	defer engine.Close()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: probes(ctx), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(listener) //nolint:errcheck // until Close
	defer server.Close()
	log.Println("probes:", listener.Addr())

	orders := delivery.NewQueue[order](engine, "orders", delivery.RetryAfter(time.Minute, time.Hour))
	receipts := delivery.NewQueue[string](engine, "receipts")
	op := asyncop.OrderedWait(asyncop.Blocking(charge), 10*time.Second, 100,
		asyncop.WithFailureSink(orders.TakeFailure))
	fmt.Println("waiting for orders")
	_, err = delivery.Run(ctx, orders, op, receipts) // after SIGTERM for 28 s at most
	return err
}

func main() {
	address := flag.String("listen", ":9090", "the `address` of the probes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := work(ctx, *address); err != nil {
		log.Fatal(err)
	}
}
