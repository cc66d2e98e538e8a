//go:build unix

package pgrecords_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgrecords"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const chargesSQL = "CREATE TABLE charges (number BIGINT NOT NULL, server INT NOT NULL)"

// chargeServer is a server of charges, in a process of its own. All servers have the same
// database.
type chargeServer struct {
	Database string
	Address  string // where it listens; port 0 means any
	Index    int
	Answers  int // charges that it answers; it does not answer later ones. 0 means all
}

// serveCharges runs a server. It prints its address.
func serveCharges(text string) error {
	ctx := context.Background()
	var s chargeServer
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, s.Database)
	if err != nil {
		return err
	}
	records := pgrecords.New(pool)
	results := server.NewResults(server.Config{Records: records})
	var charged atomic.Int64
	charge := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		number, err := strconv.Atoi(string(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request, _ := exactlyonce.RequestFromContext(r.Context())
		answer, err := records.Run(r.Context(), request, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, "INSERT INTO charges (number, server) VALUES ($1, $2)", number, s.Index)
			response := exactlyonce.Response{Status: http.StatusCreated, Body: fmt.Appendf(nil, "charged %d at server %d", number, s.Index)}
			return response.Encode(), err
		})
		if n := charged.Add(1); s.Answers > 0 && n > int64(s.Answers) {
			select {} // until it is killed
		}
		var response exactlyonce.Response
		if err == nil {
			err = response.Decode(answer)
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // rolled back
			return
		}
		response.Send(w)
	}
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	user := func(*http.Request) (string, bool) { return "shop", true }
	service := &http.Server{
		Handler:           results.Handler(http.HandlerFunc(charge), server.HandlerConfig{Scope: user, Required: true}),
		ReadHeaderTimeout: time.Minute,
	}
	return service.Serve(listener)
}

func (s chargeServer) start(t *testing.T) (p *child.Process, address string) {
	t.Helper()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	p, err = child.Start("charges", string(text))
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() }) // it may have been killed
	address, err = p.Line(time.Minute)
	require.NoError(t, err)
	return p, address
}

// chargeAt returns a function that charges an order. Each attempt goes to the endpoint
// that choose returns for it; attempts count from 1. All endpoints have the same ids.
func chargeAt(client *http.Client, choose func(order, attempt int) string) func(ctx context.Context, order int) (string, error) {
	return func(ctx context.Context, order int) (string, error) {
		endpoint := choose(order, asyncop.AttemptFromContext(ctx))
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(strconv.Itoa(order)))
		if err != nil {
			return "", err
		}
		response, err := client.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		if err := httpretry.CheckResponse(response); err != nil {
			return "", err
		}
		receipt, err := io.ReadAll(response.Body)
		return string(receipt), err
	}
}

// Two servers with one database are killed in turn, each after it has charged an order
// and before it has answered. The next attempt goes to the other server, which finds the
// answer in the database: each order is charged once (laws X1, X2).
func testFailover(t *testing.T, postgres *pgtest.Server) {
	const orders, answers = 60, 8
	url := schema(t, postgres)
	pool := connect(t, url)
	require.NoError(t, pgrecords.New(pool).Migrate(t.Context()))
	_, err := pool.Exec(t.Context(), chargesSQL)
	require.NoError(t, err)

	configs := make([]chargeServer, 2)
	processes := make([]*child.Process, len(configs))
	var endpoints []string
	for i := range configs {
		configs[i] = chargeServer{Database: url, Address: "127.0.0.1:0", Index: i, Answers: answers}
		processes[i], configs[i].Address = configs[i].start(t)
		endpoints = append(endpoints, "http://"+configs[i].Address+"/charges")
	}
	choose := func(order, attempt int) string { return endpoints[(order+attempt-1)%len(endpoints)] }
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: caller.Transport(transport, endpoints...)}
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(chargeAt(client, choose)), 4*time.Minute, 8,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithObserver(caller.NewTracker(caller.Config{})))
	var receipts []string
	ended := make(chan error, 1)
	go func() {
		var failure error
		for receipt, err := range op.Results(func(yield func(int) bool) {
			for order := range orders {
				if !yield(order) {
					return
				}
			}
		}) {
			failure = errors.Join(failure, err)
			receipts = append(receipts, receipt)
		}
		ended <- failure
	}()

	for i := range configs {
		require.Eventually(t, func() bool {
			var charges int
			err := pool.QueryRow(t.Context(), "SELECT count(*) FROM charges WHERE server = $1", i).Scan(&charges)
			return err == nil && charges > answers
		}, 4*time.Minute, 10*time.Millisecond, "server %d gets too few orders", i)
		require.NoError(t, processes[i].Kill())
		configs[i].Answers = 0
		processes[i], _ = configs[i].start(t)
	}
	require.NoError(t, <-ended)
	assert.GreaterOrEqual(t, op.Stats().Retries(), int64(len(configs)))
	rows, err := pool.Query(t.Context(), "SELECT number, server FROM charges")
	require.NoError(t, err)
	var number, index int
	var charges []string
	different := map[int]bool{}
	_, err = pgx.ForEachRow(rows, []any{&number, &index}, func() error {
		charges = append(charges, fmt.Sprintf("charged %d at server %d", number, index))
		different[number] = true
		return nil
	})
	require.NoError(t, err)
	assert.Len(t, different, orders)
	assert.ElementsMatch(t, charges, receipts) // each once, also if the other server has answered
}
