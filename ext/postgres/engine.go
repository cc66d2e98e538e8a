package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/sqlmigrate"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL files of the engine's tables, for tools such as goose: open
// the engine with [WithoutMigrations] then. A program that uses only [Engine.Locks] needs
// 0002_locks.sql and 0005_old_locks.sql, which make weir_locks.
func (*Engine) Migrations() fs.FS {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the directory is embedded
	}
	return files
}

// component names the engine's tables in weir_migrations: an earlier name of the package,
// which existing databases have.
const component = "pgstore"

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
	db := stdlib.OpenDBFromPool(s.pool)
	err := sqlmigrate.CheckVersion(ctx, db, component, s.Migrations())
	err = errors.Join(err, db.Close())
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

func (s *Engine) migrate(ctx context.Context) (made []string, err error) {
	_, err = s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	err = s.do(ctx, func() error {
		db := stdlib.OpenDBFromPool(s.pool)
		made, err = sqlmigrate.Ensure(ctx, db, sqlmigrate.PostgreSQL, component, s.Migrations())
		return errors.Join(err, db.Close())
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// Engine keeps messages in queues in a PostgreSQL database. It is a [store.Keeper] and a
// [store.Waker]. Safe for concurrent use.
type Engine struct {
	pool    *pgxpool.Pool
	owned   bool // it has opened pool
	clock   clock.Clock
	logger  *slog.Logger
	puts    *group.Together[*putting]
	settles *group.Together[*settling]
	hub     hub
	news    news

	now  string // SQL expression of the database's clock; replaced in tests
	step func() // called between statements, by tests

	forgetAt atomic.Int64 // when old names of locks are looked for again

	refused storesql.Refused // messages that Take leaves out

	ordered  sync.Map // keys are the queues of TakeInOrder
	sweeps   storesql.Sweeps
	full     storesql.FullKeys  // of TakeByKey
	rounds   storesql.KeyRounds // of TakeInOrder
	searches storesql.Searches  // of TakeInOrder
	floors   floors             // of TakeInOrder

	resetAt    atomic.Int64 // when the pool was reset last
	unprepared atomic.Bool  // see stopPreparing

	calls storesql.Calls
}

var (
	_ store.Keeper = (*Engine)(nil)
	_ store.Waker  = (*Engine)(nil)
)

const maxBatch = 500 // calls that share a statement

// Open opens the engine in the database at url. It makes missing tables, updates tables
// of an older version, and logs this. It refuses a database of a later version. If the
// user may not make tables, the error has the statements to run. The process has up to
// six connections ([WithConnections], or pool_max_conns in url), and one more that
// listens while there are workers.
//
// Open waits up to five minutes for a server that is unavailable, and up to 30 seconds
// for a standby to become the primary. A refusal, such as of a wrong password, is an
// error at once. It warns about a database that is not UTF-8, and makes no tables there.
func Open(ctx context.Context, url string, opts ...Option) (*Engine, error) {
	set := newSettings("Open", opts)
	scheme, _, isURL := strings.Cut(url, "://")
	if isURL && scheme != "postgres" && scheme != "postgresql" && !strings.ContainsAny(scheme, "= ") {
		return nil, fmt.Errorf("postgres: the URL of the database has the scheme %q: it must be postgres://USER:PASSWORD@HOST/DATABASE", scheme)
	}
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err) // pgx leaves the password out
	}
	if !strings.Contains(url, "pool_max_conns") {
		c.MaxConns = int32(set.connections) //nolint:gosec // bounded
	}
	s := newEngine(set)
	s.owned = true
	c.BeforeConnect = s.beforeConnect
	s.pool, err = pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	made, err := s.open(ctx, !set.withoutMigrations)
	if err != nil {
		s.pool.Close()
		return nil, err
	}
	if len(made) > 0 {
		set.logger.LogAttrs(ctx, slog.LevelInfo, "postgres: made the tables of queues",
			slog.String("database", c.ConnConfig.Database), slog.Any("migrations", made))
	}
	return s, nil
}

// New returns the engine in a database that has its tables, or gets them by
// [Engine.Migrate]. Close does not close pool. One more connection listens while there
// are workers. New panics if pool is nil.
func New(pool *pgxpool.Pool, opts ...Option) *Engine {
	guard.RefuseNil("postgres: New", "pool", pool)
	s := newEngine(newSettings("New", opts))
	s.pool = pool
	return s
}

func newEngine(set settings) *Engine {
	third := max(1, set.connections/3)
	s := &Engine{now: "clock_timestamp()", step: func() {}, clock: clock.New(), logger: set.logger}
	s.puts = group.NewTogether(maxBatch, third, s.putAll)
	s.settles = group.NewTogether(maxBatch, third, s.settleAll)
	s.news.closed = make(chan struct{})
	return s
}

// Pool returns the connections of the engine, for tables of your own.
func (s *Engine) Pool() *pgxpool.Pool { return s.pool }

// closeWait is short: a worker may already have waited 26 s for a server that hangs, and
// Kubernetes grants 30 s.
const closeWait = 3 * time.Second

// Close implements [store.Engine]. It waits for writes under way, and closes the
// connections if [Open] has opened them. Workers end with [store.ErrClosed]. After 3 s it
// returns an error, and continues in the background.
func (s *Engine) Close() error {
	closed := make(chan struct{})
	go func() { // ends with the writes under way: closing may take pgx 15 s if the server hangs
		defer close(closed)
		s.close()
	}()
	limit := s.clock.Timer(closeWait)
	defer limit.Stop()
	select {
	case <-closed:
		return nil
	case <-limit.C:
		return fmt.Errorf("postgres: the engine is not closed after %v: a call takes long, or the server does not answer", closeWait)
	}
}

func (s *Engine) close() {
	first := s.calls.Close()
	s.hub.close()
	s.puts.Wait()
	s.settles.Wait()
	if !first {
		s.news.sending.Wait()
		return
	}
	s.news.close()
	if s.owned {
		s.pool.Close()
	}
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
	err = s.do(ctx, func() error {
		if len(rows) == 0 {
			return nil
		}
		return s.puts.Do(ctx, &putting{rows: rows})
	})
	if err == nil && len(rows) > 0 {
		s.note(queue, duesOf(rows))
	}
	return err
}

// putting is a call of Put or HandOver.
type putting struct {
	rows []storesql.Row
	of   []origin      // of HandOver: the message that each row was made from, or zero
	left map[entry]int // set by putAll: the visits of these messages that are still in their queues
}

// origin is the message that a row was made from.
type origin struct {
	entry entry // without the fencing number
	visit int   // see [store.Move].Visit
}

func (s *Engine) putAll(ctx context.Context, take func() []*putting) error {
	var rows []storesql.Row
	var of []origin
	isHandOver := false
	calls := take()
	for _, c := range calls {
		rows = append(rows, c.rows...)
		if c.of == nil {
			of = append(of, make([]origin, len(c.rows))...)
			continue
		}
		of, isHandOver = append(of, c.of...), true
	}
	if !isHandOver {
		return retry(func() error { return s.insert(ctx, s.pool, rows) })
	}
	return retry(func() error {
		left, err := s.insertFrom(ctx, s.pool, rows, of)
		for _, c := range calls {
			c.left = left
		}
		return err
	})
}

// insertFrom puts the rows whose messages are still in their queues and were not
// replaced. It returns the visits of the messages that are still in their queues. It
// locks them against a purge and against Replace.
func (s *Engine) insertFrom(ctx context.Context, q querier, rows []storesql.Row, of []origin) (left map[entry]int, err error) {
	s.step()
	_, args := s.insertion(rows)
	var positions, visits []int64
	var queues []string
	for _, o := range of {
		positions, visits = append(positions, o.entry.position), append(visits, int64(o.visit))
		queues = append(queues, o.entry.queue)
	}
	statement := `WITH left_over AS MATERIALIZED (
			SELECT position, queue, visit FROM weir_messages WHERE position = ANY ($9::bigint[]) ORDER BY position FOR KEY SHARE
		), put AS (` + s.insertionOf(`(SELECT u.queue, u.delay, u.visit, u.merges, u.cause, u.meta, u.schema, u.payload, u.n
			FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::bigint[], $10::text[], $11::bigint[])
			WITH ORDINALITY AS u (queue, delay, visit, merges, cause, meta, schema, payload, of_position, of_queue, of_visit, n)
			WHERE u.of_position = 0 OR EXISTS (SELECT 1 FROM left_over AS l
				WHERE l.position = u.of_position AND l.queue = u.of_queue AND (u.of_visit <= 0 OR l.visit < u.of_visit)))`) + `)
		SELECT position, queue, visit FROM left_over`
	found, err := q.Query(ctx, statement, append(args, positions, queues, visits)...)
	if err != nil {
		return nil, err
	}
	left = map[entry]int{}
	var e entry
	var visit int
	_, err = pgx.ForEachRow(found, []any{&e.position, &e.queue, &visit}, func() error {
		left[e] = visit
		return nil
	})
	s.step()
	return left, err
}

type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// insertionOf returns the statement that puts the messages of a table, by its last
// column.
func (s *Engine) insertionOf(messages string) string {
	return `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta, schema, payload)
		SELECT queue, now + delay * interval '1 microsecond', now + delay * interval '1 microsecond', now, visit, merges, cause, meta::jsonb, schema, payload
		FROM (SELECT ` + s.now + ` AS now) AS clock, ` + messages + ` AS m (queue, delay, visit, merges, cause, meta, schema, payload, n)
		ORDER BY n ON CONFLICT DO NOTHING`
}

func (s *Engine) insert(ctx context.Context, q querier, rows []storesql.Row) error {
	s.step()
	query, args := s.insertion(rows)
	_, err := q.Exec(ctx, query, args...)
	s.step()
	return err
}

func (s *Engine) insertion(rows []storesql.Row) (query string, args []any) {
	var queues, causes, metas []string
	var delays, visits, merges []int64
	var schemas, payloads [][]byte
	for _, r := range rows {
		queues = append(queues, r.Queue)
		causes = append(causes, storesql.Readable(string(r.Cause)))
		metas = append(metas, r.MetaColumn)
		delays = append(delays, micros(r.Delay))
		visits, merges = append(visits, int64(r.Meta.Visit)), append(merges, int64(r.Meta.Merges))
		schemas, payloads = append(schemas, r.Schema), append(payloads, r.Payload)
	}
	return s.insertionOf(`unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::bytea[], $8::bytea[])
		WITH ORDINALITY`), []any{queues, delays, visits, merges, causes, metas, schemas, payloads}
}

const columns = `m.position, m.fence, m.due, m.cause, m.meta, m.schema, m.payload`

// Take implements [store.Store].
func (s *Engine) Take(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	if err := storearg.Take(queue, limit, lease); err != nil {
		return nil, err
	}
	// Law D3: the database's clock decides which messages are due.
	err = s.do(ctx, func() error {
		taken, err = s.leaseAround(ctx, queue, `queue = $2 AND at <= (SELECT now FROM clock)`+storesql.ExceptRefused+` ORDER BY at, position LIMIT $3`,
			micros(lease), queue, limit)
		return err
	})
	slices.SortFunc(taken, func(a, b store.Leased) int {
		return cmp.Or(a.Meta.Due.Compare(b.Meta.Due), cmp.Compare(a.Position, b.Position))
	})
	return taken, err
}

// byIndex applies to one transaction. With sorting off, PostgreSQL would estimate a huge
// cost for a query that sorts, and compile it, which takes 0.2 s.
const byIndex = `SELECT set_config('enable_sort', 'off', true), set_config('jit', 'off', true)`

type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// indexed runs a query with ORDER BY and LIMIT through its index, and f, which closes the
// rows. With statistics a minute old, PostgreSQL would take a long queue for a short one,
// and sort it for each call.
func indexed(ctx context.Context, q batcher, f func(rows pgx.Rows, err error) error, sql string, args ...any) error {
	batch := &pgx.Batch{} // one round trip and one transaction
	batch.Queue(byIndex)
	batch.Queue(sql, args...)
	results := q.SendBatch(ctx, batch)
	defer results.Close() //nolint:errcheck // below, or its error is one that was read
	if _, err := results.Exec(); err != nil {
		return err
	}
	if err := f(results.Query()); err != nil {
		return err
	}
	return results.Close()
}

// leaseAround is lease without messages that the database refuses to lease. They are
// logged and left out for a while (law D4). chosen has storesql.ExceptRefused.
func (s *Engine) leaseAround(ctx context.Context, queue, chosen string, args ...any) ([]store.Leased, error) {
	call := s.newTakeCall(ctx, queue)
	call.All = func() ([]store.Leased, error) {
		return s.lease(ctx, queue, nil, s.refused.Except(chosen, s.clock.Now()), args...)
	}
	call.Find = func() ([]int64, error) {
		return s.findPositions(ctx, s.refused.Except(chosen, s.clock.Now()), args...)
	}
	call.These = func(positions []int64) ([]store.Leased, error) {
		return s.lease(ctx, queue, nil, `position = ANY ($2::bigint[]) AND queue = $3 AND at <= (SELECT now FROM clock) ORDER BY at, position`,
			args[0], positions, queue)
	}
	return call.Do(&s.refused)
}

// findPositions returns the positions of the messages that lease would lease.
func (s *Engine) findPositions(ctx context.Context, chosen string, args ...any) ([]int64, error) {
	rows, err := s.pool.Query(ctx, `WITH clock AS MATERIALIZED (SELECT `+s.now+` AS now, $1::bigint)
		SELECT position FROM weir_messages WHERE `+chosen, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// newTakeCall returns a call without the functions All, Find and These.
func (s *Engine) newTakeCall(ctx context.Context, queue string) storesql.TakeCall[store.Leased] {
	return storesql.TakeCall[store.Leased]{
		IsRefusal: isRefusal, Now: s.clock.Now,
		Log: func(position int64, cause error, wait time.Duration) {
			s.logger.LogAttrs(ctx, slog.LevelError, "postgres: the database refuses to lease a message; it is left out, and tried again later",
				slog.String("queue", queue), slog.Int64("position", position), slog.String("error", guard.Text(cause)), slog.Duration("wait", wait))
		},
	}
}

// lease leases the chosen messages for $1 microseconds, unless another call is leasing
// them. If there are locks, see leaseLocked.
func (s *Engine) lease(ctx context.Context, queue string, locks []int64, chosen string, args ...any) (taken []store.Leased, err error) {
	if len(locks) > 0 {
		return s.leaseLocked(ctx, queue, locks, chosen, args...)
	}
	s.step()
	err = indexed(ctx, s.pool, func(rows pgx.Rows, err error) error {
		taken, err = scanLeased(rows, err, queue)
		return err
	}, s.leasing(chosen, "")+" RETURNING "+columns+", m.lapses", args...)
	s.step()
	return taken, err
}

// leasing returns a statement that leases the chosen messages for $1 microseconds. more
// are further assignments of its SET clause, or empty. PostgreSQL expects a short array,
// so it does not scan the table, as it might for a join.
func (s *Engine) leasing(chosen, more string) string {
	return `WITH clock AS MATERIALIZED (SELECT ` + s.now + ` AS now),
		chosen AS MATERIALIZED (SELECT position, coalesce(octet_length(payload), 0) AS size FROM weir_messages WHERE ` + chosen + ` FOR UPDATE SKIP LOCKED),
		fitting AS (SELECT position, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM chosen)
		UPDATE weir_messages AS m SET at = now + $1 * interval '1 microsecond', leased = now + $1 * interval '1 microsecond', fence = fence + 1,
			lapses = lapses + (leased IS NOT NULL)::int` + more + `
		FROM clock WHERE m.position = ANY (ARRAY(SELECT position FROM fitting WHERE before < ` + strconv.Itoa(storearg.MaxBytes) + `))`
}

// scanLeased reads the columns of leased messages, and the column lapses.
func scanLeased(rows pgx.Rows, err error, queue string) (taken []store.Leased, _ error) {
	var lapses int
	err = scan(rows, err, func(m store.Message, position, fence int64, damage error) {
		taken = append(taken, store.Leased{
			Message: m, Position: position, Lapses: lapses, Damage: damage,
			Lease: store.Lease{Queue: queue, Entry: strconv.FormatInt(position, 10), Fence: uint64(fence)},
		})
	}, &lapses)
	return taken, err
}

// settling is a call of Extend, Done or Release.
type settling struct {
	change string // SET clause of an UPDATE of m, which may use delay; empty for a DELETE
	delay  time.Duration
	leases []store.Lease
	lost   []store.Lease
}

// Extend implements [store.Store].
func (s *Engine) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if err := storearg.Extend(d); err != nil {
		return err
	}
	return s.settle(ctx, &settling{
		change: "at = now + delay * interval '1 microsecond', leased = now + delay * interval '1 microsecond'",
		delay:  d, leases: leases,
	})
}

// Done implements [store.Store].
func (s *Engine) Done(ctx context.Context, leases ...store.Lease) error {
	return s.settle(ctx, &settling{leases: leases})
}

const releasing = "at = now + delay * interval '1 microsecond', due = now + delay * interval '1 microsecond', leased = NULL"

// Release implements [store.Store].
func (s *Engine) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if err := storearg.Release(delay); err != nil {
		return err
	}
	if delay >= storearg.ForGood {
		return s.setAside(ctx, delay, leases)
	}
	err := s.settle(ctx, &settling{
		change: releasing,
		delay:  delay, leases: leases,
	})
	var d dues
	d.add(delay)
	for _, l := range leases {
		s.note(l.Queue, d)
	}
	return err
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
	var delay *int64
	if a.Delay > 0 {
		d := micros(a.Delay)
		delay = &d
	}
	e, ok := entryOf(lease)
	if !ok {
		return storearg.Lost([]store.Lease{lease})
	}
	var found bool
	err := s.do(ctx, func() error {
		tag, err := s.pool.Exec(ctx, `UPDATE weir_messages AS m SET
			meta = CASE WHEN $4::text IS NULL THEN meta ELSE jsonb_set(meta, '{provider}', to_jsonb($4::text)) END,
			due = coalesce(change.due, m.due), at = greatest(m.at, change.due), leased = greatest(m.leased, change.due)
			FROM (SELECT `+s.now+` + $5::bigint * interval '1 microsecond' AS due) AS change
			WHERE m.position = $1 AND m.queue = $2 AND m.fence = $3 AND m.leased IS NOT NULL`, e.position, e.queue, e.fence, provider, delay)
		found = tag.RowsAffected() == 1
		return err
	})
	if err == nil && !found {
		err = storearg.Lost([]store.Lease{lease})
	}
	return err
}

func (s *Engine) settle(ctx context.Context, call *settling) error {
	err := s.do(ctx, func() error {
		if len(call.leases) == 0 {
			return nil
		}
		return s.settles.Do(ctx, call)
	})
	if err != nil {
		return err
	}
	return storearg.Lost(call.lost)
}

// settleAll runs one statement for each kind of call.
func (s *Engine) settleAll(ctx context.Context, take func() []*settling) error {
	for batch := take(); len(batch) > 0; {
		change := batch[0].change
		var same, others []*settling
		for _, call := range batch {
			if call.change == change {
				same = append(same, call)
			} else {
				others = append(others, call)
			}
		}
		settle := s.settleSame
		if change == "" {
			settle = s.settleDone
		}
		if err := retry(func() error { return settle(ctx, same) }); err != nil {
			return err
		}
		batch = others
	}
	return nil
}

type entry struct {
	position, fence int64
	queue           string
}

// entryOf returns the entry of a lease; ok is false if this store cannot have granted it.
func entryOf(l store.Lease) (e entry, ok bool) {
	position, err := strconv.ParseInt(l.Entry, 10, 64)
	return entry{position, int64(l.Fence), l.Queue}, err == nil && l.Fence <= math.MaxInt64 //nolint:gosec // compared
}

// settleSame runs calls of one kind, and sets the leases that they have lost.
func (s *Engine) settleSame(ctx context.Context, batch []*settling) error {
	settled, _, err := s.settleBy(ctx, s.pool, updateOf(s.now, batch[0].change), leasesOf(batch))
	if err != nil {
		return err
	}
	noteLost(batch, settled)
	return nil
}

// settleDone runs calls of Done, and sets the leases that they have lost. One statement
// removes the messages that are not heads of their keys, except in queues whose keys are
// in order. The others take a transaction, in which a key's next message becomes the
// head.
func (s *Engine) settleDone(ctx context.Context, batch []*settling) error {
	left := leasesOf(batch)
	settled := map[entry]bool{}
	if !s.anyOrdered(left) {
		var err error
		settled, _, err = s.settleBy(ctx, s.pool, deletion+" AND NOT m.head"+returnsHead, left)
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(l delayedLease) bool { return settled[l.entry] })
	}
	if len(left) > 0 {
		var heads []queueKey
		err := pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) (err error) {
			var others map[entry]bool
			others, heads, err = s.settleBy(ctx, tx, deletion+returnsHead, left)
			if err != nil {
				return err
			}
			maps.Copy(settled, others)
			return s.appoint(ctx, tx, heads)
		})
		if err != nil {
			return err
		}
		s.wakeQueues(heads)
	}
	noteLost(batch, settled)
	return nil
}

func (s *Engine) anyOrdered(leases []delayedLease) bool {
	return slices.ContainsFunc(leases, func(l delayedLease) bool {
		_, isOrdered := s.ordered.Load(l.queue)
		return isOrdered
	})
}

type delayedLease struct {
	entry
	delay time.Duration
}

func leasesOf(batch []*settling) (list []delayedLease) {
	for _, call := range batch {
		for _, l := range call.leases {
			e, ok := entryOf(l)
			if ok {
				list = append(list, delayedLease{e, call.delay})
			}
		}
	}
	return list
}

func noteLost(batch []*settling, settled map[entry]bool) {
	for _, call := range batch {
		call.lost = nil
		for _, l := range call.leases {
			e, ok := entryOf(l)
			if !ok || !settled[e] {
				call.lost = append(call.lost, l)
			}
		}
	}
}

// Parts of the statements that settle leases. The subqueries hide their number from
// PostgreSQL: for many it would scan the table.
const (
	settledLeases = `unnest((SELECT $1::bigint[]), (SELECT $2::bigint[]), (SELECT $3::text[]), (SELECT $4::bigint[])) AS l (position, fence, queue, delay)`
	isHeld        = ` WHERE m.position = l.position AND m.queue = l.queue AND m.fence = l.fence AND m.leased IS NOT NULL`
	deletion      = "DELETE FROM weir_messages AS m USING " + settledLeases + isHeld
	returnsHead   = ` RETURNING m.position, l.fence, m.queue, CASE WHEN m.head THEN m.meta->>'key' END`
)

func updateOf(now, change string) string {
	return "UPDATE weir_messages AS m SET " + change + " FROM (SELECT " + now + " AS now) AS clock, " + settledLeases + isHeld +
		" RETURNING m.position, l.fence, m.queue, NULL::text"
}

// settleBy runs a statement for leases. It returns the settled leases, and the keys of
// the heads that it has removed.
func (s *Engine) settleBy(ctx context.Context, q querier, statement string, leases []delayedLease) (settled map[entry]bool, heads []queueKey, err error) {
	var positions, fences, delays []int64
	var queues []string
	for _, l := range leases {
		positions = append(positions, l.position)
		fences = append(fences, l.fence)
		queues = append(queues, l.queue)
		delays = append(delays, micros(l.delay))
	}
	s.step()
	rows, err := q.Query(ctx, statement, positions, fences, queues, delays)
	if err != nil {
		return nil, nil, err
	}
	settled = map[entry]bool{}
	var e entry
	var key *string
	_, err = pgx.ForEachRow(rows, []any{&e.position, &e.fence, &e.queue, &key}, func() error {
		settled[e] = true
		if key != nil {
			heads = append(heads, queueKey{e.queue, *key})
		}
		key = nil
		return nil
	})
	s.step()
	return settled, heads, err
}

// do runs f unless the store is closed or ctx has ended, and explains its error. It
// repeats f if the database has rolled it back for another transaction. With REPEATABLE
// READ as the database's default this also happens to single statements.
func (s *Engine) do(ctx context.Context, f func() error) error {
	if !s.calls.Begin() {
		return store.ErrClosed
	}
	defer s.calls.End()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return explain(s.repeat(ctx, func() error { return retry(f) }))
}

func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case sqlState(err) == "53100": // disk_full
		return fmt.Errorf("postgres: %w: %w", store.ErrFull, err)
	case isRefusal(err):
		return fmt.Errorf("postgres: %w: %w", message.ErrRefused, err)
	default:
		return fmt.Errorf("postgres: %w", sqlmigrate.Explain(err, "postgres.Engine.Migrate", "weir_messages", "weir_locks", "weir_records"))
	}
}

// isRefusal reports whether the database refuses to store something: data exceptions,
// violated constraints, program limits, and errors raised by a trigger.
func isRefusal(err error) bool {
	state := sqlState(err)
	return len(state) == 5 && slices.Contains([]string{"22", "23", "44", "54"}, state[:2]) || state == "P0001" || isUntranslatable(err)
}

// mostRetries is high because each try can lose to the next transaction: of eight that
// change a row, seven are rolled back.
const mostRetries = 100

func retry(f func() error) (err error) {
	for range mostRetries {
		err = f()
		if err == nil || sqlState(err) != "40P01" && sqlState(err) != "40001" {
			return err
		}
	}
	return err
}

func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// scan reads the columns of messages, and more columns into more. A damaged row does not
// block others (law D4).
func scan(rows pgx.Rows, err error, f func(m store.Message, position, fence int64, damage error), more ...any) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var m store.Message
		var position, fence int64
		var due time.Time
		var meta []byte
		dest := append([]any{&position, &fence, &due, (*string)(&m.Cause), &meta, &m.Schema, &m.Payload}, more...)
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		var damage error
		m.Meta, damage = storesql.ReadMeta(meta, position, due)
		f(m, position, fence, damage)
	}
	return rows.Err()
}

// micros returns the microseconds of d, rounded up (law D3). Delays are capped at
// storearg.LongestDelay.
func micros(d time.Duration) int64 {
	d = min(d, storearg.LongestDelay)
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}
