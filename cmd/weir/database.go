package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/guard"
)

const connectTimeout = 10 * time.Second

// database is a program's database. The program creates the tables and streams; this
// command creates tables only with --create.
type database struct {
	store   queues
	locks   lock.Locks // nil if unsupported
	sql     *sql.DB    // holds the requests with keys; nil if unsupported
	listed  *keys.Keys // to list these requests; nil if unsupported
	keys    *keys.Keys // to change these requests
	closers []func() error
}

// queues are the operations on queues.
type queues interface {
	Put(ctx context.Context, queue string, ms ...store.Message) error
	List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error)
	Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error)
	Queues(ctx context.Context) ([]string, error)

	// matching returns how many messages a job would affect, or an error if it is
	// impossible.
	matching(ctx context.Context, s jobs.Spec) (int, error)
	// do starts a job and runs it, or leaves it to the workers. show gets the progress.
	do(ctx context.Context, s jobs.Spec, leave bool, show func(jobs.Progress)) (jobs.Job, error)
	empty(ctx context.Context, queue string) (bool, error)
	// workersRead returns the queues that workers are known to read.
	workersRead(ctx context.Context) ([]string, error)
}

// inspected are the queues of a store with an Inspector.
type inspected struct {
	store.Inspector
	clock clock.Clock
	log   slog.Handler // for jobs in this process
}

func (s inspected) empty(ctx context.Context, queue string) (bool, error) {
	entries, err := s.List(ctx, queue, store.Filter{}, store.Page{Max: 1})
	return len(entries) == 0, err
}

func (s inspected) matching(ctx context.Context, spec jobs.Spec) (int, error) {
	if err := here(ctx, s, spec.Queue, spec.Filter); err != nil {
		return 0, err
	}
	n, err := s.Count(ctx, spec.Queue, spec.Filter)
	return n.Messages, err
}

func (s inspected) jobs() (*jobs.Jobs, error) {
	return jobs.New(s.Inspector, jobs.Config{Local: true, Clock: s.clock, Logger: slog.New(s.log)})
}

func (s inspected) keeps() bool {
	_, ok := s.Inspector.(store.Keeper)
	return ok
}

func (s inspected) do(ctx context.Context, spec jobs.Spec, leave bool, show func(jobs.Progress)) (jobs.Job, error) {
	if leave && !s.keeps() {
		return jobs.Job{}, usagef("--detach: this store keeps no jobs")
	}
	j, err := s.jobs()
	if err != nil {
		return jobs.Job{}, err
	}
	job, err := j.Start(ctx, spec)
	if err != nil || leave {
		return job, err
	}
	return s.run(ctx, j, job, show)
}

// run runs a job. The error of an interruption describes how the job continues.
func (s inspected) run(ctx context.Context, j *jobs.Jobs, job jobs.Job, show func(jobs.Progress)) (jobs.Job, error) {
	job, err := j.Run(ctx, job.ID, func(job jobs.Job) { show(job.Progress) })
	switch {
	case err == nil || ctx.Err() == nil:
		return job, err
	case !s.keeps():
		return job, errAgain
	}
	if now, err := j.Get(context.WithoutCancel(ctx), job.ID); err == nil {
		job = now
	}
	return job, fmt.Errorf("interrupted: job %d continues in a worker, or with weir jobs run %d", job.ID, job.ID)
}

// errAgain reports the interruption of a job that does not continue by itself.
var errAgain = errors.New("interrupted: call it again to continue")

// deniedError is an operation that the user of the URL may not perform.
type deniedError struct{ error }

func (e *deniedError) Unwrap() error { return e.error }

// with opens the database, runs f, and closes the database. f's context ends when the
// server denies an operation, because the client would wait for an answer.
func (a *app) with(ctx context.Context, f func(ctx context.Context, db *database) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	db, err := a.open(ctx, func(err error) { cancel(&deniedError{err}) })
	if err == nil {
		if s, ok := db.store.(inspected); ok {
			s.log = &stepLog{Handler: slog.DiscardHandler, app: a}
			db.store = s
		}
		err = errors.Join(db.explain(ctx, f(ctx, db)), db.close())
	}
	if denied, ok := errors.AsType[*deniedError](context.Cause(ctx)); ok && err != nil {
		return denied
	}
	return err
}

// engine names the URL's system, or returns "" for a database with tables.
func (a *app) engine() string {
	scheme, _, _ := strings.Cut(a.url, ":")
	return map[string]string{"nats": "JetStream", "tls": "JetStream", "kafka": "Kafka"}[scheme]
}

func (a *app) open(ctx context.Context, denied func(error)) (*database, error) {
	address := a.url
	scheme, rest, _ := strings.Cut(address, ":")
	switch {
	case a.create && a.engine() != "":
		return nil, usagef("--create is for sqlite: and postgres://")
	case address == "":
		return nil, usagef("which database? Give --db URL, or set WEIR_DB (-h for help)")
	case scheme == "sqlite":
		return openSQLite(ctx, strings.TrimPrefix(rest, "//"), a.create, a.clock)
	case scheme == "postgres" || scheme == "postgresql":
		return openPostgres(ctx, address, a.create, a.clock)
	case scheme == "nats" || scheme == "tls":
		return openJetStream(ctx, address, a.clock, denied)
	case scheme == "kafka":
		return openKafka(ctx, address)
	case scheme == "file":
		return nil, usagef("file: is not a database: put the directory into one, for example with\n"+
			"weir dead import --db sqlite:dead.db --create --queue orders-dead %s", strings.TrimPrefix(rest, "//"))
	}
	remedy := ""
	if !strings.ContainsAny(address, ":=@") { // the path of a file, and not a password
		remedy = ": did you mean sqlite:" + address + "?"
	}
	return nil, usagef("the URL of the database must begin with sqlite:, postgres://, nats://, tls:// or kafka://%s", remedy)
}

func openSQLite(ctx context.Context, path string, create bool, c clock.Clock) (*database, error) {
	path, err := url.PathUnescape(path)
	if err != nil {
		return nil, usagef("the URL of the database: %v", err)
	}
	if file, parameters, has := strings.Cut(path, "?"); has && strings.Contains(parameters, "=") {
		return nil, usagef("the URL of the database must end with the path of the file: use sqlite:%s", file)
	}
	info, err := os.Stat(path) // because opening would create the file
	switch {
	case create && errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the database is missing: start the program once, or run weir dead import --create: %w", err)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", path)
	}
	var opts []sqlite.Option
	if file, err := os.OpenFile(path, os.O_RDWR, 0); errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		opts = append(opts, sqlite.WithReadOnly())
	} else if err == nil {
		_ = file.Close() // the file is unchanged
	}
	db, err := sqlite.OpenDB(ctx, path, opts...)
	if err != nil {
		return nil, err
	}
	if create {
		if err := sqlite.New(db).Migrate(ctx); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	s := sqlite.New(db)
	d := &database{
		store: inspected{Inspector: s, clock: c}, locks: s.Locks(), sql: db.Reader(), closers: []func() error{s.Close, db.Close},
		listed: keys.New(db.Reader(), keys.SQLite, keys.Config{}), keys: keys.New(db.Writer(), keys.SQLite, keys.Config{}),
	}
	return d.checked(ctx, s)
}

// versioned is an engine with versioned tables.
type versioned interface {
	CheckVersion(ctx context.Context) error
}

// checked returns db, or closes it and returns an error if a later version of weir has
// made its tables: that version does not expect data of this one.
func (db *database) checked(ctx context.Context, s versioned) (*database, error) {
	err := s.CheckVersion(ctx)
	if err == nil {
		err = db.listed.CheckVersion(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, db.close())
	}
	return db, nil
}

func openPostgres(ctx context.Context, address string, create bool, c clock.Clock) (*database, error) {
	if _, err := url.Parse(address); err != nil { // err may contain a part of the password
		return nil, usagef("the URL of the database is not valid: special characters of a password are percent-encoded")
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok && errors.Unwrap(parse) != nil {
			err = errors.Unwrap(parse)
		}
		return nil, usagef("the URL of the database is not valid: %v", err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(connecting); err != nil {
		pool.Close()
		return nil, err
	}
	if create {
		if err := postgres.New(pool).Migrate(ctx); err != nil {
			pool.Close()
			return nil, err
		}
	}
	s := postgres.New(pool)
	db := stdlib.OpenDBFromPool(pool)
	closePool := func() error { // with a server that hangs, Close waits for 15 s or more
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		go func() {
			defer cancel()
			pool.Close()
		}()
		<-ctx.Done()
		return nil
	}
	d := &database{
		store: inspected{Inspector: s, clock: c}, locks: s.Locks(), sql: db, closers: []func() error{s.Close, db.Close, closePool},
		listed: keys.New(db, keys.PostgreSQL, keys.Config{}), keys: keys.New(db, keys.PostgreSQL, keys.Config{}),
	}
	return d.checked(ctx, s)
}

func (db *database) close() error {
	errs := make([]error, len(db.closers))
	for i, f := range db.closers {
		errs[i] = f()
	}
	return errors.Join(errs...)
}

// hasEngine reports whether the database has an engine's tables.
func (db *database) hasEngine(ctx context.Context) bool {
	var component string
	row := db.sql.QueryRowContext(ctx, "SELECT component FROM weir_migrations WHERE component LIKE '%store' LIMIT 1")
	return row.Scan(&component) == nil
}

// explain adds the likely cause of a missing table.
func (db *database) explain(ctx context.Context, err error) error {
	if err == nil || !lacksTable(err) {
		return err
	}
	for _, table := range []struct {
		name, component string
		version         int // first version with the table
	}{
		{"weir_messages", "store", 1}, {"weir_locks", "store", 2}, {"weir_records", "store", 4}, {"weir_keys", "keys", 1}, // names in both databases
	} {
		var component string
		if strings.Contains(err.Error(), table.name) && db.sql.QueryRowContext(ctx,
			"SELECT component FROM weir_migrations WHERE component LIKE $1 AND version >= $2 LIMIT 1", "%"+table.component, table.version).Scan(&component) == nil {
			return fmt.Errorf("the table %s was made, and has been dropped: restore it, or run DELETE FROM weir_migrations "+
				"WHERE component = '%s', after which the program makes it anew and empty when it starts: %w", table.name, component, err)
		}
	}
	if strings.Contains(err.Error(), "weir_records") && db.hasEngine(ctx) {
		return fmt.Errorf("the tables are of an earlier version of weir: start a program of this version, or add --create to this command: %w", err)
	}
	if strings.Contains(err.Error(), "weir_keys") && db.hasEngine(ctx) {
		return fmt.Errorf("this database has queues, but no table of requests with idempotency keys: keys.Keys.Migrate makes it: %w", err)
	}
	return fmt.Errorf("table missing: start the program once, or, for queues, run weir dead import --create: %w", err)
}

func lacksTable(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "42P01"
	}
	return err != nil && strings.Contains(err.Error(), "no such table")
}

// withoutSecrets hides the secrets of all URLs in a text, and the secrets of urls
// anywhere in it.
func withoutSecrets(text string, urls ...string) string {
	for _, address := range urls {
		for _, secret := range secrets(address) {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return guard.WithoutSecrets(text)
}

// secrets returns a URL's password in every form in which it may appear.
func secrets(address string) (all []string) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return nil
	}
	add := func(s string) {
		if s != "" {
			all = append(all, s)
		}
		if plain, err := url.PathUnescape(s); err == nil && plain != "" && plain != s {
			all = append(all, plain)
		}
	}
	authority, _, _ := strings.Cut(rest, "/")
	for _, s := range []string{rest, authority} { // the password may contain a slash, or be followed by an @
		if at := strings.LastIndex(s, "@"); at >= 0 {
			user, password, ok := strings.Cut(s[:at], ":")
			add(password)
			if !ok && (scheme == "nats" || scheme == "tls") {
				add(user) // a token
			}
		}
	}
	if _, query, ok := strings.Cut(rest, "?"); ok {
		for parameter := range strings.SplitSeq(query, "&") {
			if name, value, _ := strings.Cut(parameter, "="); strings.Contains(name, "password") {
				add(value)
			}
		}
	}
	return all
}
