package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/sqlmigrate"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/wait"
	"github.com/weirflow/weir/message"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL files of the engine's tables, for tools such as goose: open
// the engine with [WithoutMigrations] then.
func (*Engine) Migrations() fs.FS {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the directory is embedded
	}
	return files
}

// component names the engine's tables in weir_migrations: an earlier name of the package,
// which existing databases have.
const component = "sqlitestore"

// Migrate makes or updates the tables of the engine, as [Open] does. It may run at each
// start.
func (s *Engine) Migrate(ctx context.Context) error {
	_, err := s.migrate(ctx)
	return err
}

// CheckVersion returns an error if a later version of weir has made the tables. Missing
// or older tables are not an error. A program that does not call [Engine.Migrate] should
// call CheckVersion before it writes.
func (s *Engine) CheckVersion(ctx context.Context) error {
	if err := sqlmigrate.CheckVersion(ctx, s.db.Reader(), component, s.Migrations()); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

func (s *Engine) migrate(ctx context.Context) (made []string, err error) {
	made, err = sqlmigrate.Ensure(ctx, s.db.Writer(), sqlmigrate.SQLite, component, s.Migrations())
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	return made, nil
}

// Engine keeps messages in queues in an SQLite database. It is a [store.Keeper] and a
// [store.Waker]. Safe for concurrent use, even by several processes.
type Engine struct {
	db       *DB
	owned    bool // it has opened db
	clock    *wait.Forward
	ownClock bool // clock is from WithClock, and may jump while timers do not

	step   func()               // called between statements, so that tests can interrupt there
	writes *group.Together[job] // see write

	forgetAt atomic.Int64 // when the engine next looks for old names of locks

	logger  *slog.Logger
	refused storesql.Refused // messages that the database refuses to lease: takes leave them out

	full storesql.FullKeys // of TakeByKey

	// Of TakeInOrder:
	rounds   storesql.KeyRounds
	searches storesql.Searches
	sweeps   storesql.Sweeps

	calls storesql.Calls // running calls, for which Close waits
}

var _ store.Keeper = (*Engine)(nil)

// Open opens the engine in the file at path. It makes missing files and tables, updates
// tables of an older version, and logs this. It refuses a file of a later version. One
// connection writes, up to four read ([WithReaders]), and one watches for changes while
// there are consumers.
func Open(ctx context.Context, path string, opts ...Option) (*Engine, error) {
	set := newSettings("Open", opts)
	db, err := openDB(ctx, path, &set)
	if err != nil {
		return nil, err
	}
	e := newEngine(db, &set)
	if !set.readOnly && !set.withoutMigrations {
		made, err := e.migrate(ctx)
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		if len(made) > 0 {
			e.logger.LogAttrs(ctx, slog.LevelInfo, "sqlite: made the tables of queues",
				slog.String("file", path), slog.Any("migrations", made))
		}
	}
	e.owned = true
	return e, nil
}

// New returns the engine in a database that has its tables, or gets them by
// [Engine.Migrate]. Close does not close db. New panics if db is nil.
func New(db *DB, opts ...Option) *Engine {
	guard.RefuseNil("sqlite: New", "database", db)
	set := newSettings("New", opts)
	return newEngine(db, &set)
}

func newEngine(db *DB, set *settings) *Engine {
	s := &Engine{db: db, clock: db.watcher.now, step: func() {}, logger: set.logger}
	if set.clock != nil {
		s.clock = wait.NewForward(set.clock)
		s.ownClock = true
	}
	s.writes = group.NewTogether(maxBatch, 1, s.runAll)
	return s
}

// DB returns the database of the engine, for tables of your own.
func (s *Engine) DB() *DB { return s.db }

// closeWait is how long Close waits for calls: another process may hold the write lock.
const closeWait = 3 * time.Second

// Close implements [store.Engine]. It waits for calls under way, and closes the database
// if [Open] has opened it. After 3 s it returns an error and continues in the background.
func (s *Engine) Close() error {
	closed := make(chan error, 1)
	go func() { closed <- s.close() }() // ends with the calls, each of which waits for the busy timeout at most
	limit := clock.New().Timer(closeWait)
	defer limit.Stop()
	select {
	case err := <-closed:
		return err
	case <-limit.C:
		return fmt.Errorf("sqlite: the engine is not closed after %v: a call takes long, or another process writes to %q", closeWait, s.db.path)
	}
}

func (s *Engine) close() error {
	first := s.calls.Close()
	s.db.watcher.end(store.ErrClosed, func(c *waiter) bool { return c.engine == s })
	s.writes.Wait()
	if !first || !s.owned {
		return nil
	}
	return s.db.Close()
}

const setClock = `INSERT INTO weir_messages_clock (id, now) VALUES (1, $1)
	ON CONFLICT (id) DO UPDATE SET now = max(now, excluded.now) RETURNING now`

// The driver binds parameters without numbers faster. Several messages in an INSERT took
// longer.
const putMessage = `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta, schema, payload)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`

// The columns of times, for a message that
//
//	waits       at: when it can be taken; due: when it is due; leased: NULL
//	is leased   at and leased: the end of the lease, which may have passed
//	is held     at: never
//	is parked   at: parked (see TakeInOrder)
//
// The files in migrations describe all columns: lapses is in 0003, head in 0008, limited
// in 0009, and the others are in 0001.
const columns = `position, fence, due, cause, meta, schema, payload`

// sized has a message's position and the size of its payload, for takeThese.
const sized = `position, coalesce(length(payload), 0) AS size`

// positionsDue selects due messages by time. It does not need $1, which is empty, but the
// driver refuses arguments that a statement does not use.
const positionsDue = `SELECT ` + sized + ` FROM weir_messages WHERE queue = $2 AND at <= $3 AND $1 = ''` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT $4`

// ofLease is the condition of a lease that is not lost: see leaseArgs.
const (
	ofLease   = ` WHERE ` + isOfLease
	isOfLease = `position = $1 AND queue = $2 AND fence = $3 AND leased IS NOT NULL`
)

func putRows(ctx context.Context, tx execer, now time.Time, rows []storesql.Row, step func()) error {
	for _, r := range rows {
		at := nanos(now, r.Delay)
		if _, err := tx.ExecContext(ctx, putMessage, r.Queue, at, at, nanos(now, 0),
			r.Meta.Visit, r.Meta.Merges, string(r.Cause), r.MetaColumn, r.Schema, r.Payload); err != nil {
			return err
		}
		step()
		shared, ok := tx.(*Tx)
		if ok {
			shared.noteDue(r.Queue, r.Delay)
		}
	}
	return nil
}

// Put implements [store.Store].
func (s *Engine) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if err := storearg.Put(queue, ms...); err != nil {
		return err
	}
	rows, err := storesql.NewRows(queue, ms)
	if err != nil {
		return err
	}
	return s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		return putRows(ctx, tx, now, rows, s.step)
	})
}

// Take implements [store.Store].
func (s *Engine) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	if err := storearg.Take(queue, limit, lease); err != nil {
		return nil, err
	}
	if due, err := s.anyDue(ctx, queue); !due || err != nil {
		return nil, err
	}
	taken, err = s.takeAround(ctx, queue, positionsDue, "", limit, lease)
	slices.SortFunc(taken, func(a, b store.Leased) int {
		return cmp.Or(a.Meta.Due.Compare(b.Meta.Due), cmp.Compare(a.Position, b.Position))
	})
	return taken, err
}

// positionsGiven selects messages of the positions in $1 that are still due.
const positionsGiven = `SELECT ` + sized + ` FROM weir_messages WHERE position IN (SELECT value FROM json_each($1)) AND +queue = $2
	AND +at <= $3 ORDER BY at, position LIMIT $4`

// takeAround leases messages that query selects, except for messages that a trigger or a
// check refuses to lease. These are logged, and left out for a while (law D4). query has
// the mark storesql.ExceptRefused, where their positions are excluded.
func (s *Engine) takeAround(ctx context.Context, queue, query, argument string, limit int, lease time.Duration) ([]store.Leased, error) {
	call := s.newTakeCall(ctx, queue)
	call.All = func() ([]store.Leased, error) {
		return s.takeThese(ctx, queue, s.refused.Except(query, s.clock.Now()), argument, limit, lease)
	}
	call.Find = func() ([]int64, error) {
		positions := `SELECT position FROM (` + s.refused.Except(query, s.clock.Now()) + `)`
		return s.readPositions(ctx, positions, func(now time.Time) []any { return []any{argument, queue, nanos(now, 0), limit} })
	}
	call.These = func(positions []int64) ([]store.Leased, error) {
		given, err := json.Marshal(positions)
		if err != nil {
			return nil, err
		}
		return s.takeThese(ctx, queue, positionsGiven, string(given), len(positions), lease)
	}
	return call.Do(&s.refused)
}

// newTakeCall returns a call without the functions All, Find and These.
func (s *Engine) newTakeCall(ctx context.Context, queue string) storesql.TakeCall[store.Leased] {
	return storesql.TakeCall[store.Leased]{
		IsRefusal: func(err error) bool { return errors.Is(err, message.ErrRefused) }, Now: s.clock.Now,
		Log: func(position int64, cause error, wait time.Duration) {
			s.logger.LogAttrs(ctx, slog.LevelError, "sqlite: the database refuses to lease a message; it is left out, and tried again later",
				slog.String("queue", queue), slog.Int64("position", position), slog.String("error", guard.Text(cause)), slog.Duration("wait", wait))
		},
	}
}

// takeThese leases the messages that query selects at the time of the transaction (law
// D3). query must use these parameters:
//
//	$1    argument: a JSON array of keys or positions, or ""
//	$2    the queue
//	$3    the time of the transaction
//	$4    the limit
func (s *Engine) takeThese(ctx context.Context, queue, query, argument string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) (err error) {
		taken, err = leaseThese(ctx, tx, now, queue, leasing(query, ""), argument, limit, lease)
		return err
	})
	return taken, err
}

// leasing returns the statement that leases the messages of query. more are further
// assignments of its SET clause, or "".
//
// It counts leases that have ended (law W2): a message that has the column leased set,
// and can be taken, had such a lease. It stops after the message with which the payloads
// reach $6 bytes: before is the size of the payloads before a message.
func leasing(query, more string) string {
	return `UPDATE weir_messages SET at = $5, leased = $5, fence = fence + 1, lapses = lapses + (leased IS NOT NULL)` + more + `
		WHERE position IN (SELECT position FROM (
			SELECT position, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM (` + query + `)
		) WHERE before < $6) RETURNING ` + columns + `, lapses`
}

// leaseThese executes a statement of leasing in a transaction.
func leaseThese(ctx context.Context, tx *Tx, now time.Time, queue, statement, argument string, limit int, lease time.Duration) ([]store.Leased, error) {
	rows, err := tx.QueryContext(ctx, statement, argument, queue, nanos(now, 0), limit, nanos(now, lease), storearg.MaxBytes)
	return scanLeased(rows, err, queue)
}

const highestClock = `coalesce((SELECT now FROM weir_messages_clock), 0)`

// now returns the store's time for calls that only read. It may be ahead of the machine's
// clock (law D3).
func (s *Engine) now(ctx context.Context) (time.Time, error) {
	var highest int64
	if err := s.db.Reader().QueryRowContext(ctx, "SELECT "+highestClock).Scan(&highest); err != nil {
		return time.Time{}, err
	}
	return s.clock.AtLeast(time.Unix(0, highest)), nil
}

// anyDue reports whether a queue has messages that can be taken. It does not need the
// write lock, so consumers of an empty queue do not delay others.
func (s *Engine) anyDue(ctx context.Context, queue string) (due bool, err error) {
	err = s.do(ctx, func() error {
		return s.db.Reader().QueryRowContext(ctx,
			"SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND at <= max($2, "+highestClock+"))", queue, nanos(s.clock.Now(), 0)).Scan(&due)
	})
	return due, err
}

// Extend implements [store.Store].
func (s *Engine) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if err := storearg.Extend(d); err != nil {
		return err
	}
	return s.settle(ctx, leases, func(ctx context.Context, tx *Tx, now time.Time, l leaseArgs) (changed bool, err error) {
		return changedRow(tx.ExecContext(ctx, "UPDATE weir_messages SET at = $4, leased = $4"+ofLease, l.position, l.queue, l.fence, nanos(now, d)))
	})
}

// Done implements [store.Store].
func (s *Engine) Done(ctx context.Context, leases ...store.Lease) error {
	return s.settle(ctx, leases, func(ctx context.Context, tx *Tx, now time.Time, l leaseArgs) (changed bool, err error) {
		return l.remove(ctx, s, tx, now)
	})
}

// Release implements [store.Store].
func (s *Engine) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if err := storearg.Release(delay); err != nil {
		return err
	}
	return s.settle(ctx, leases, func(ctx context.Context, tx *Tx, now time.Time, l leaseArgs) (changed bool, err error) {
		if delay >= storearg.ForGood {
			return s.setAside(ctx, tx, now, delay, l)
		}
		tx.noteDue(l.queue, delay)
		return changedRow(tx.ExecContext(ctx, "UPDATE weir_messages SET at = $4, due = $4, leased = NULL"+ofLease,
			l.position, l.queue, l.fence, nanos(now, delay)))
	})
}

// Amend implements [store.Store].
func (s *Engine) Amend(ctx context.Context, lease store.Lease, a store.Amendment) error {
	if err := storearg.Amend(a); err != nil {
		return err
	}
	var provider *string
	if a.Provider != nil {
		name, err := storesql.Escaped(*a.Provider)
		if err != nil {
			return err
		}
		provider = &name
	}
	return s.settle(ctx, []store.Lease{lease}, func(ctx context.Context, tx *Tx, now time.Time, l leaseArgs) (changed bool, err error) {
		var due *int64
		if a.Delay > 0 {
			at := nanos(now, a.Delay)
			due = &at
		}
		return changedRow(tx.ExecContext(ctx, `UPDATE weir_messages SET
			meta = CASE WHEN $4 IS NULL THEN meta ELSE json_set(meta, '$.provider', $4) END,
			due = coalesce($5, due), at = max(at, coalesce($5, at)), leased = max(leased, coalesce($5, leased))`+ofLease,
			l.position, l.queue, l.fence, provider, due))
	})
}

type leaseArgs struct {
	position int64
	queue    string
	fence    int64
	index    int // in the call
}

// remove removes a message. If it was the head of its key, the next one becomes the head.
func (l leaseArgs) remove(ctx context.Context, s *Engine, tx *Tx, now time.Time) (removed bool, err error) {
	removed, err = changedRow(tx.ExecContext(ctx, "DELETE FROM weir_messages"+ofLease+" AND head = 0", l.position, l.queue, l.fence))
	if removed || err != nil {
		return removed, err
	}
	n, err := s.removeRows(ctx, tx, now, l.queue, isOfLease, l.position, l.queue, l.fence)
	return n > 0, err
}

func changedRow(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// settle calls f for each lease. A lease is lost if f changes no row.
func (s *Engine) settle(ctx context.Context, leases []store.Lease,
	f func(context.Context, *Tx, time.Time, leaseArgs) (changed bool, err error),
) error {
	var lost []store.Lease
	err := s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		lost = nil
		for i, l := range leases {
			position, err := strconv.ParseInt(l.Entry, 10, 64)
			if err != nil || l.Fence > math.MaxInt64 {
				lost = append(lost, l)
				continue
			}
			changed, err := f(ctx, tx, now, leaseArgs{position, l.Queue, int64(l.Fence), i})
			s.step()
			if err != nil {
				return err
			}
			if !changed {
				lost = append(lost, l)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return storearg.Lost(lost)
}

// do runs f unless the store is closed or ctx has ended, and explains its error.
func (s *Engine) do(ctx context.Context, f func() error) error {
	if !s.calls.Begin() {
		return store.ErrClosed
	}
	defer s.calls.End()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := f()
	if err == nil || errors.Is(err, store.ErrClosed) {
		return err
	}
	if e, ok := errors.AsType[*driver.Error](err); ok {
		switch e.Code() & 0xff {
		case codes.SQLITE_FULL:
			return fmt.Errorf("sqlite: %w: the disk of %q: make room on it (to remove messages takes room as well): %w", store.ErrFull, s.db.path, err)
		case codes.SQLITE_TOOBIG, codes.SQLITE_CONSTRAINT:
			return fmt.Errorf("sqlite: %w: %w", message.ErrRefused, err)
		}
	}
	return explain(err)
}

// isRefusal reports whether a trigger or a check of the user's refused a statement.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && (e.Code()&0xff == codes.SQLITE_TOOBIG || e.Code()&0xff == codes.SQLITE_CONSTRAINT)
}

func explain(err error) error {
	return fmt.Errorf("sqlite: %w", sqlmigrate.Explain(err, "sqlite.Engine.Migrate", "weir_messages", "weir_locks", "weir_records"))
}

func scanLeased(rows *sql.Rows, err error, queue string) (taken []store.Leased, _ error) {
	var lapses int
	err = scan(rows, err, func(m store.Message, position, fence int64, damage error) {
		taken = append(taken, store.Leased{
			Message: m, Position: position, Lapses: lapses, Damage: damage,
			Lease: store.Lease{Queue: queue, Entry: strconv.FormatInt(position, 10), Fence: uint64(fence)},
		})
	}, &lapses)
	return taken, err
}

// scan reads the columns of messages, and more columns into more. A damaged row does not
// block others (law D4).
func scan(rows *sql.Rows, err error, f func(m store.Message, position, fence int64, damage error), more ...any) error {
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is looked at
	for rows.Next() {
		var m store.Message
		var position, fence, due int64
		var meta []byte
		dest := append([]any{&position, &fence, &due, (*string)(&m.Cause), &meta, &m.Schema, &m.Payload}, more...)
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		var damage error
		m.Meta, damage = storesql.ReadMeta(meta, position, time.Unix(0, due))
		f(m, position, fence, damage)
	}
	return rows.Err()
}

// nanos returns the time d after t, at most the last that is not a mark (never, parked).
// Delays are capped at storearg.LongestDelay.
func nanos(t time.Time, d time.Duration) int64 {
	d = min(d, storearg.LongestDelay)
	if n := t.UnixNano(); int64(d) < parked-n {
		return n + int64(d)
	}
	return parked - 1
}
