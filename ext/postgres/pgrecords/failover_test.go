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
	"slices"
	"strconv"
	"strings"
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
	Hangs    []int // orders that it charges and then never answers
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
		if slices.Contains(s.Hangs, number) {
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
	const orders = 60
	url := database(t, postgres)
	pool := connect(t, url)
	require.NoError(t, pgrecords.New(pool).Migrate(t.Context()))
	_, err := pool.Exec(t.Context(), chargesSQL)
	require.NoError(t, err)

	hangs := []int{20, 41} // at server 0 and server 1: see choose
	configs := make([]chargeServer, 2)
	processes := make([]*child.Process, len(configs))
	var endpoints []string
	for i := range configs {
		configs[i] = chargeServer{Database: url, Address: "127.0.0.1:0", Index: i, Hangs: hangs}
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

	for i, order := range hangs {
		require.Eventually(t, func() bool {
			var isCharged bool
			err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM charges WHERE number = $1 AND server = $2)", order, i).Scan(&isCharged)
			return err == nil && isCharged
		}, 4*time.Minute, 10*time.Millisecond, "order %d is not charged at server %d", order, i)
		require.NoError(t, processes[i].Kill())
		configs[i].Hangs = nil
		processes[i], _ = configs[i].start(t)
	}
	require.NoError(t, <-ended)
	assert.Len(t, receipts, orders)
	for i, order := range hangs { // the other server has the answer of the killed server
		assert.Contains(t, receipts, fmt.Sprintf("charged %d at server %d", order, i))
	}
	assert.GreaterOrEqual(t, op.Stats().Retries(), int64(len(hangs)))
	var charges, different int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT number) FROM charges").Scan(&charges, &different))
	assert.Equal(t, orders, charges)
	assert.Equal(t, orders, different)
}
