package docs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// loseFirst lets the first request take effect, and loses its answer.
func loseFirst(next http.Handler) http.Handler {
	var requests atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if requests.Add(1) == 1 {
			next.ServeHTTP(httptest.NewRecorder(), req)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, req)
	})
}

func userOf(req *http.Request) (string, bool) {
	user, _, ok := req.BasicAuth()
	return user, ok
}

func Example_exactlyOnceOverHTTP() {
	var charges atomic.Int64
	charge := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "charge %d", charges.Add(1))
	})

	// The service.
	results := server.NewResults(server.Config{})
	defer results.Close(context.Background())
	tracked := results.Handler(charge, server.HandlerConfig{Scope: userOf, Required: true})
	service := httptest.NewServer(loseFirst(tracked))
	defer service.Close()
	endpoint := service.URL + "/charges"

	// The program that calls it.
	client := &http.Client{Transport: caller.Transport(service.Client().Transport, endpoint)}
	send := func(ctx context.Context, _ string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, nil)
		if err != nil {
			return "", err
		}
		req.SetBasicAuth("alice", "secret")
		resp, err := client.Do(req)
		if err != nil {
			fmt.Printf("attempt %d: lost\n", asyncop.AttemptFromContext(ctx))
			return "", err
		}
		defer resp.Body.Close()
		return resp.Status + " " + resp.Header.Get("Exactly-Once-Result"), httpretry.CheckResponse(resp)
	}

	tracker := caller.NewTracker(caller.Config{})
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(send), 5*time.Second, 100,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithObserver(tracker))
	for answer, err := range op.Results(slices.Values([]string{"order 17"})) {
		fmt.Println(answer, err)
	}
	fmt.Println("charges:", charges.Load())
	// Output:
	// attempt 1: lost
	// 200 OK replayed <nil>
	// charges: 1
}

// The program dies after the charge and before the answer. The next run continues from
// its checkpoint.
func Example_exactlyOnceWithCheckpoints() {
	var charges atomic.Int64
	kill := func(error) {}
	charge := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "charge %d", charges.Add(1))
	})
	results := server.NewResults(server.Config{})
	defer results.Close(context.Background())
	tracked := results.Handler(charge, server.HandlerConfig{Scope: userOf, Required: true})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if charges.Load() == 0 {
			tracked.ServeHTTP(httptest.NewRecorder(), req)
			kill(errors.New("killed"))
			<-req.Context().Done()
			return
		}
		tracked.ServeHTTP(w, req)
	}))
	defer service.Close()
	endpoint := service.URL + "/charges"
	client := &http.Client{Transport: caller.Transport(service.Client().Transport, endpoint)}
	send := func(ctx context.Context, order string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(order))
		if err != nil {
			return "", err
		}
		req.SetBasicAuth("alice", "secret")
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		fmt.Println(resp.Status, resp.Header.Get("Exactly-Once-Result"))
		return resp.Status, httpretry.CheckResponse(resp)
	}

	run := func(ctx context.Context, store checkpoint.Store) error {
		coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(10*time.Second), checkpoint.WithLogger(quiet))
		if err != nil {
			return err
		}
		defer coordinator.Close()
		source := checkpoint.NewSource(coordinator, "orders", checkpointtest.NewSliceInput([]string{"order 17"}))
		tracker := caller.NewTracker(caller.Config{})
		op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(send), 5*time.Second, 100,
			strategies.ReasonAware(httpretry.Classifier[string](), nil),
			asyncop.WithContext(ctx), asyncop.WithName("charges"), asyncop.WithCheckpoints(coordinator),
			asyncop.WithDrainRetries(), // a file ends: let its retries end, too
			asyncop.WithObserver(tracker))
		if err := coordinator.Start(); err != nil {
			return err
		}
		source.Via(op).To(extension.NewIgnoreSink())
		return op.Wait()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	kill = cancel
	store := checkpointtest.NewMemoryStore()
	if err := run(ctx, store); errors.Is(err, context.Cause(ctx)) {
		fmt.Println("run 1:", context.Cause(ctx))
	}
	fmt.Println("run 2:", run(context.Background(), store.Reopen()))
	fmt.Println("charges:", charges.Load())
	// Output:
	// run 1: killed
	// 200 OK replayed
	// run 2: <nil>
	// charges: 1
}

func Example_exactlyOnceWithoutHTTP() {
	balance := 100
	results := server.NewResults(server.Config{})
	defer results.Close(context.Background())
	withdraw := func(ctx context.Context, request exactlyonce.Request, amount int) (string, error) {
		answer, _, err := results.Do(ctx, request, func(context.Context) ([]byte, error) {
			balance -= amount
			return fmt.Appendf(nil, "balance %d", balance), nil
		})
		return string(answer), err
	}

	request := exactlyonce.Request{Scope: "alice", ID: exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1}}
	for request.Attempt = 1; request.Attempt <= 2; request.Attempt++ {
		answer, err := withdraw(context.Background(), request, 30)
		fmt.Println(answer, err)
	}
	// Output:
	// balance 70 <nil>
	// balance 70 <nil>
}

// withdraw is a handler whose record and effect are one transaction.
func withdraw(records *sqliterecords.Records) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		request, _ := exactlyonce.RequestFromContext(req.Context())
		answer, err := records.Run(req.Context(), request, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 30 WHERE owner = ?", request.Scope)
			response := exactlyonce.Response{Status: http.StatusCreated, Body: []byte("withdrawn")}
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
		response.Send(w)
	})
}

// Each attempt finds a service that was just started.
func Example_exactlyOnceRecords() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "bank"))
	defer os.RemoveAll(dir)
	db := must(sqlite.OpenDB(ctx, filepath.Join(dir, "bank.db")))
	defer db.Close()
	check(sqliterecords.New(db).Migrate(ctx))
	must(db.Writer().ExecContext(ctx, "CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER)"))
	must(db.Writer().ExecContext(ctx, "INSERT INTO accounts VALUES ('alice', 100)"))

	id := exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1}
	for id.Attempt = 1; id.Attempt <= 2; id.Attempt++ {
		records := sqliterecords.New(db)
		results := server.NewResults(server.Config{Records: records})
		service := results.Handler(withdraw(records), server.HandlerConfig{Scope: userOf, Required: true})

		req := httptest.NewRequest(http.MethodPost, "/withdrawals", nil)
		req.SetBasicAuth("alice", "secret")
		req.Header.Set(exactlyonce.Header, id.String())
		w := httptest.NewRecorder()
		service.ServeHTTP(w, req)
		fmt.Printf("%d %s %q\n", w.Code, w.Body, w.Header().Get("Exactly-Once-Result"))
		check(results.Close(ctx))
	}
	var balance int
	check(db.Reader().QueryRowContext(ctx, "SELECT balance FROM accounts").Scan(&balance))
	fmt.Println("balance:", balance)
	// Output:
	// 201 withdrawn ""
	// 201 withdrawn "replayed"
	// balance: 70
}

// Two servers share the records. The first withdraws, and its answer is lost.
func Example_exactlyOnceSeveralServers() {
	ctx := context.Background()
	dir := must(os.MkdirTemp("", "bank"))
	defer os.RemoveAll(dir)
	db := must(sqlite.OpenDB(ctx, filepath.Join(dir, "bank.db")))
	defer db.Close()
	check(sqliterecords.New(db).Migrate(ctx))
	must(db.Writer().ExecContext(ctx, "CREATE TABLE accounts (owner TEXT PRIMARY KEY, balance INTEGER)"))
	must(db.Writer().ExecContext(ctx, "INSERT INTO accounts VALUES ('alice', 100)"))
	start := func(around func(http.Handler) http.Handler) (service *httptest.Server, stop func()) {
		records := sqliterecords.New(db)
		results := server.NewResults(server.Config{Records: records})
		service = httptest.NewServer(around(results.Handler(withdraw(records), server.HandlerConfig{Scope: userOf, Required: true})))
		return service, func() {
			service.Close()
			check(results.Close(ctx))
		}
	}
	first, stopFirst := start(loseFirst)
	defer stopFirst()
	second, stopSecond := start(func(h http.Handler) http.Handler { return h })
	defer stopSecond()

	endpoints := []string{first.URL + "/withdrawals", second.URL + "/withdrawals"}
	choose := func(attempt int) string { return endpoints[(attempt-1)%len(endpoints)] } // attempts count from 1
	client := &http.Client{Transport: caller.Transport(first.Client().Transport, endpoints...)}
	send := func(ctx context.Context, _ string) (string, error) {
		endpoint := choose(asyncop.AttemptFromContext(ctx))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, nil)
		if err != nil {
			return "", err
		}
		req.SetBasicAuth("alice", "secret")
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println("first server: lost")
			return "", err
		}
		defer resp.Body.Close()
		return "second server: " + resp.Status + " " + resp.Header.Get("Exactly-Once-Result"), httpretry.CheckResponse(resp)
	}
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(send), time.Minute, 100,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithAttemptTimeout(10*time.Second), // if a server hangs, the next attempt goes to the other server
		asyncop.WithObserver(caller.NewTracker(caller.Config{})))
	for answer, err := range op.Results(slices.Values([]string{"withdrawal 17"})) {
		fmt.Println(answer, err)
	}
	var balance int
	check(db.Reader().QueryRowContext(ctx, "SELECT balance FROM accounts").Scan(&balance))
	fmt.Println("balance:", balance)
	// Output:
	// first server: lost
	// second server: 201 Created replayed <nil>
	// balance: 70
}
