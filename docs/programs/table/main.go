package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"iter"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/ext/sqlite/sqliteretry"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/progress"
	"github.com/weirflow/weir/strategies"
)

var (
	path       = flag.String("db", "places.db", "the `file` of the database")
	sample     = flag.Int("sample", 0, "add this `number` of rows first")
	perSecond  = flag.Float64("rate", 1000, "calls a `second`")
	onlyFailed = flag.Bool("only-failed", false, "call again for the rows that have failed")
	errBusy    = errors.New("the service is busy") // worth a retry
)

// found is the new content of a row: a zone, or the error of the last call.
type found struct {
	id           int64
	zone, failed sql.NullString
}

type place struct {
	id      int64
	address string
}

// zoneOf is a placeholder for your call.
func zoneOf(_ context.Context, p place) (found, error) {
	if p.address == "" {
		return found{}, errors.New("the row has no address")
	}
	return found{id: p.id, zone: sql.NullString{String: "zone of " + p.address, Valid: true}}, nil
}

// places yields the rows that match todo, by their key. Only the input ends with ctx.
func places(ctx context.Context, db *sql.DB, todo string) iter.Seq2[place, error] {
	return func(yield func(place, error) bool) {
		for last, more := int64(0), true; more; {
			page, err := readPage(db, todo, last)
			if err != nil {
				yield(place{}, err)
				return
			}
			for _, p := range page {
				if ctx.Err() != nil || !yield(p, nil) {
					return
				}
				last = p.id
			}
			more = len(page) > 0
		}
	}
}

func readPage(db *sql.DB, todo string, last int64) (page []place, err error) {
	rows, err := db.Query("SELECT id, address FROM places WHERE id > ? AND "+todo+" ORDER BY id LIMIT 500", last)
	if err != nil {
		return nil, err
	}
	defer rows.Close() // before the calls begin: an open query would block the writes
	for rows.Next() {
		var p place
		err = errors.Join(err, rows.Scan(&p.id, &p.address))
		page = append(page, p)
	}
	return page, errors.Join(err, rows.Err())
}

// write writes a batch of results in one transaction.
func write(ctx context.Context, db *sql.DB, batch []found) ([]asyncop.Result[int64], error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	results := make([]asyncop.Result[int64], len(batch))
	for i, f := range batch {
		if _, err := tx.ExecContext(ctx, "UPDATE places SET zone = ?, failed = ? WHERE id = ?", f.zone, f.failed, f.id); err != nil {
			return nil, err // the whole batch is written again
		}
		results[i].Value = f.id
	}
	return results, tx.Commit()
}

func run(ctx context.Context, db *sql.DB, todo string) error {
	service := backend.New("zones", backend.Rate(*perSecond, time.Second), backend.Limit(50))
	// A row that fails gets its error as its result, so that the row is written, too.
	call := asyncop.HandleFailure(asyncop.Blocking(zoneOf), func(_ context.Context, f asyncop.Failure[place]) ([]found, error) {
		return []found{{id: f.Element.id, failed: sql.NullString{String: f.Err.Error(), Valid: true}}}, nil
	})
	calls := asyncop.UnorderedWaitWithRetry(call, time.Minute, 100,
		strategies.FixedDelay[found](3, time.Second).RetryIfException(predicates.ErrorIs(errBusy)), asyncop.WithBackend(service))
	writes := asyncop.UnorderedWaitWithRetry(asyncop.Batched(func(ctx context.Context, batch []found) ([]asyncop.Result[int64], error) {
		return write(ctx, db, batch)
	}, 200, 50*time.Millisecond), time.Minute, 1000,
		strategies.ReasonAware(sqliteretry.Classifier[int64](), nil), asyncop.WithMaxConcurrentCalls(1)) // SQLite has one writer
	defer progress.Line{Out: os.Stderr, What: "rows", Sample: func() progress.State { return progress.Of(calls.Stats()) }}.Start()()
	for _, err := range writes.ResultsFrom(calls.ResultsFrom(places(ctx, db, todo))) {
		if err != nil {
			return err
		}
	}
	return nil // all that were read are written
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	held, err := lock.TryFile(*path + ".lock")
	check(err) // it names the process that has the lock
	defer held.Release()
	db, err := sql.Open("sqlite", *path+"?_pragma=busy_timeout(5000)")
	check(err)
	_, err = db.Exec(table, *sample)
	check(err)
	todo := map[bool]string{false: "zone IS NULL AND failed IS NULL", true: "failed IS NOT NULL"}[*onlyFailed]
	check(run(ctx, db, todo))
	var zones, failed int
	check(db.QueryRow("SELECT count(zone), count(failed) FROM places").Scan(&zones, &failed))
	fmt.Printf("%d rows have a zone, and %d have failed\n", zones, failed)
}

func check(err error) {
	if err != nil {
		log.Fatal(err) // the end of the process releases the lock
	}
}

// table makes the table, with rows for a sample: each hundredth is without an address.
const table = `CREATE TABLE IF NOT EXISTS places (id INTEGER PRIMARY KEY, address TEXT NOT NULL, zone TEXT, failed TEXT);
	WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
	INSERT OR IGNORE INTO places (id, address) SELECT i, iif(i % 100, 'street ' || i, '') FROM n WHERE ?1 > 0`
