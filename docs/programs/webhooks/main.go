// Command webhooks sends events to the endpoints of customers.
package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const tables = `CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY, url TEXT, secrets TEXT, has_left INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS bookings (id TEXT PRIMARY KEY, customer TEXT);`

var client = &http.Client{CheckRedirect: func(r *http.Request, _ []*http.Request) error {
	return fmt.Errorf("a redirect to %s is not followed", r.URL)
}}

type event struct{ Customer, Kind, Booking string }

func (event) Idempotent() bool { return true } // its id tells the customer that it was sent twice

type sender struct {
	engine *sqlite.Engine
	events *delivery.Queue[event]
	jobs   *jobs.Jobs
}

func newSender(engine *sqlite.Engine, turns delivery.QueueOption) (*sender, error) {
	events := delivery.NewQueue[event](engine, "events", turns, delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour, 6*time.Hour))
	j, err := jobs.New(engine, jobs.Config{})
	return &sender{engine, events, j}, err
}

// book stores a booking and puts its event in one transaction: both happen, or neither.
func (s *sender) book(ctx context.Context, id, customer string) error {
	return s.engine.DB().Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO bookings (id, customer) VALUES (?, ?)", id, customer); err != nil {
			return err
		}
		var hasLeft bool
		err := tx.QueryRowContext(ctx, "SELECT has_left FROM customers WHERE name = ?", customer).Scan(&hasLeft)
		if err != nil || hasLeft {
			return err
		}
		return sqlite.PutTx(ctx, tx, s.events, event{customer, "booked", id}, delivery.Key(customer), delivery.ID("booked/"+id))
	})
}

// send posts an event to the present address of its customer, with the present secrets.
func (s *sender) send(ctx context.Context, e event) (string, error) {
	var url, secrets string
	var hasLeft bool
	row := s.engine.DB().Reader().QueryRowContext(ctx, "SELECT url, secrets, has_left FROM customers WHERE name = ?", e.Customer)
	if err := row.Scan(&url, &secrets, &hasLeft); err != nil || hasLeft {
		return "", err
	}
	body, _ := json.Marshal(e) // three strings are always encoded
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	meta, _ := message.MetaFromContext(ctx)
	sign(request.Header, secrets, meta.ID, strconv.FormatInt(time.Now().Unix(), 10), body)
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusGone {
		return "", s.leave(ctx, e.Customer)
	}
	return response.Status, httpretry.CheckResponse(response)
}

// sign sets the headers of Standard Webhooks, with a signature for each secret.
func sign(h http.Header, secrets, id string, at string, body []byte) {
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	var signatures []string
	for secret := range strings.FieldsSeq(secrets) {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(id + "." + at + "." + string(body)))
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
}

// leave cancels all events of a customer, also those that have calls or are dead letters.
func (s *sender) leave(ctx context.Context, customer string) error {
	_, err := s.engine.DB().Writer().ExecContext(ctx, "UPDATE customers SET has_left = 1 WHERE name = ?", customer)
	if err == nil {
		_, err = s.jobs.CancelKey(ctx, s.events.Name(), customer, "webhooks", "its endpoint answered 410")
	}
	return err
}

func (s *sender) PutAll(context.Context, []message.Message[string]) error { return nil } // statuses are not kept

func (s *sender) run(ctx context.Context) error {
	customers := backend.New("customers", backend.Limit(100), backend.TenantRate(20, time.Second), backend.TenantBreaker())
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(s.send), 30*time.Second, 100,
		strategies.ReasonAware(httpretry.Classifier[string](), nil), asyncop.WithAttemptTimeout(10*time.Second),
		asyncop.WithBackend(customers), asyncop.WithFailureSink(s.events.TakeFailure))
	_, err := delivery.Run(ctx, s.events, op, s)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	engine, err := sqlite.Open(ctx, "shop.db")
	check(err)
	defer engine.Close()
	_, err = engine.DB().Writer().ExecContext(ctx, tables)
	check(err)
	s, err := newSender(engine, delivery.WithFairByKey(5))
	check(err)
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { fmt.Println(r.Header.Get("Webhook-Id")) }))
	_, err = engine.DB().Writer().Exec("INSERT OR REPLACE INTO customers (name, url, secrets) VALUES ('ann', ?, 'new old')", endpoint.URL)
	check(err)
	check(s.book(ctx, os.Args[1], "ann"))
	check(s.run(ctx)) // until Ctrl-C or SIGTERM
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
