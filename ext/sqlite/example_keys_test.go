package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
)

var errDeclined = errors.New("card declined")

// charge asks a payment provider, which does one charge for each key. Its first answer is
// lost.
func charge(charges map[string]string) func(ctx context.Context, key string, cents int) (string, error) {
	lost := false
	return func(_ context.Context, key string, cents int) (string, error) {
		if cents > 10_000 {
			return "", errDeclined
		}
		if charges[key] == "" {
			charges[key] = fmt.Sprintf("charge %d", len(charges)+1)
		}
		if !lost {
			lost = true
			return "", errors.New("no answer")
		}
		return charges[key], nil
	}
}

// A service that books a ride in three steps: it stores the ride, charges for it, and
// stores the charge. Clients repeat requests until they get an answer; each ride is
// booked and charged once.
func Example_idempotencyKeys() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "keys")
	check(err)
	defer os.RemoveAll(dir)
	db, err := sqlite.OpenDB(ctx, filepath.Join(dir, "rides.db"))
	check(err)
	defer db.Close()
	check(keys.New(db.Writer(), keys.SQLite, keys.Config{}).Migrate(ctx))
	_, err = db.Writer().ExecContext(ctx, "CREATE TABLE rides (id INTEGER PRIMARY KEY, destination TEXT, charge TEXT)")
	check(err)
	charges := map[string]string{}
	charge := charge(charges)

	store := keys.New(db.Writer(), keys.SQLite, keys.Config{})
	bookRide := store.Operation("book_ride", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		ride, err := keys.Phase(ctx, run, "ride_created", func(ctx context.Context, tx *sql.Tx) (id int64, err error) {
			err = tx.QueryRowContext(ctx, "INSERT INTO rides (destination) VALUES (?) RETURNING id", string(run.Body)).Scan(&id)
			return id, err
		})
		if err != nil {
			return exactlyonce.Response{}, err
		}
		charged, err := keys.Call(ctx, run, "charge_created", func(ctx context.Context, key string) (string, error) {
			return charge(ctx, key, 1000*len(run.Body))
		})
		switch {
		case errors.Is(err, errDeclined): // definite: stored, and given again
			return keys.JSON(http.StatusPaymentRequired, err.Error())
		case err != nil: // not definite: the next attempt continues from here
			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
		}
		return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
			if _, err := tx.ExecContext(ctx, "UPDATE rides SET charge = ? WHERE id = ?", charged, ride); err != nil {
				return exactlyonce.Response{}, err
			}
			return keys.JSON(http.StatusCreated, fmt.Sprint("ride ", ride, ", ", charged))
		})
	})
	server := httptest.NewServer(bookRide.Handler(keys.HandlerConfig{
		User: func(*http.Request) (string, bool) { return "ann", true }, // the authenticated user
	}))
	defer server.Close()

	for _, request := range []struct{ key, destination string }{
		{"key-1", "harbour"}, {"key-1", "harbour"}, {"key-1", "harbour"}, {"key-2", "harbour"}, {"key-2", "station"}, {"key-3", "the other coast"},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(request.destination))
		check(err)
		req.Header.Set("Idempotency-Key", request.key)
		resp, err := http.DefaultClient.Do(req)
		check(err)
		body, err := io.ReadAll(resp.Body)
		check(errors.Join(err, resp.Body.Close()))
		if resp.Header.Get("Content-Type") != "application/json" { // a problem document, or no body
			body = []byte("-")
		}
		fmt.Printf("%s %s: %d %q %s\n", request.key, request.destination, resp.StatusCode, resp.Header.Get("Exactly-Once-Result"), strings.TrimSpace(string(body)))
	}
	fmt.Println(len(charges), "charges")
	http.DefaultClient.CloseIdleConnections()

	// Output:
	// key-1 harbour: 503 "" -
	// key-1 harbour: 201 "" "ride 1, charge 1"
	// key-1 harbour: 201 "replayed" "ride 1, charge 1"
	// key-2 harbour: 201 "" "ride 2, charge 2"
	// key-2 station: 409 "mismatch" -
	// key-3 the other coast: 402 "" "card declined"
	// 2 charges
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
