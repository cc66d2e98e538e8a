package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirflow/weir/delivery/deadletters"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
)

// connectTimeout is how long a connection may take.
const connectTimeout = 10 * time.Second

// database is what the commands look into. Its tables and streams are made by the programs; this command makes tables only if it is asked to.
type database struct {
	store   queues
	locks   lock.Locks // nil: there are none
	sql     *sql.DB    // of the requests with keys; nil: there are none
	keys    *keys.Keys // the same, to change them
	closers []func() error
}

// queues is what the commands do with the queues of a store.
type queues interface {
	deadletters.Lister
	deadletters.Putter
	Queues(ctx context.Context) ([]string, error)

	// purge removes what matches, and returns how many those were, when confirm has returned nil for their number. What comes
	// after that stays.
	purge(ctx context.Context, queue string, f store.Filter, confirm func(n int) error) (int, error)
	merge(ctx context.Context, c deadletters.Config) (deadletters.Merged, error)
	// empty reports whether a queue has no messages.
	empty(ctx context.Context, queue string) (bool, error)
}

// inspected are the queues of a store that can look into them.
type inspected struct{ store.Inspector }

func (s inspected) merge(ctx context.Context, c deadletters.Config) (deadletters.Merged, error) {
	return deadletters.Merge(ctx, s.Inspector, c)
}

func (s inspected) empty(ctx context.Context, queue string) (bool, error) {
	entries, err := s.List(ctx, queue, store.Filter{}, store.Page{Max: 1})
	return len(entries) == 0, err
}

func (s inspected) purge(ctx context.Context, queue string, f store.Filter, confirm func(n int) error) (int, error) {
	if err := here(ctx, s, queue, f); err != nil {
		return 0, err
	}
	n, err := s.Count(ctx, queue, f)
	if err != nil || n.Messages == 0 {
		return 0, err
	}
	if err := confirm(n.Messages); err != nil {
		return 0, err
	}
	last, err := s.List(ctx, queue, f, store.Page{After: n.Last - 1, Until: n.Last, Max: 1})
	if err != nil {
		return 0, err
	}
	if len(last) == 1 { // what came while the person was thinking stays
		if end := last[0].Arrived.Add(time.Microsecond); f.Before.IsZero() || end.Before(f.Before) {
			f.Before = end
		}
	}
	return s.Purge(ctx, queue, f)
}

// deniedError is what the user of the URL is not allowed to do.
type deniedError struct{ error }

func (e *deniedError) Unwrap() error { return e.error }

// with opens the database, runs f, and closes it. The context of f ends when the server says that something is not allowed: its
// client would wait for an answer.
func (a *app) with(ctx context.Context, f func(ctx context.Context, db *database) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	db, err := a.open(ctx, func(err error) { cancel(&deniedError{err}) })
	if err == nil {
		err = errors.Join(db.explain(ctx, f(ctx, db)), db.close())
	}
	if denied, ok := errors.AsType[*deniedError](context.Cause(ctx)); ok && err != nil {
		return denied
	}
	return err
}

// engine returns the name of what the URL is of, if that is no database with tables.
func (a *app) engine() string {
	scheme, _, _ := strings.Cut(a.url, ":")
	return map[string]string{"nats": "JetStream", "tls": "JetStream", "kafka": "Kafka", "file": "a directory of dead letters"}[scheme]
}

func (a *app) open(ctx context.Context, denied func(error)) (*database, error) {
	address := a.url
	scheme, rest, _ := strings.Cut(address, ":")
	switch {
	case a.create && a.engine() != "":
		return nil, usagef("-create is for sqlite: and postgres://")
	case address == "":
		return nil, usagef("which database? Give -db URL, or set WEIR_DB (-h for help)")
	case scheme == "sqlite":
		return openSQLite(ctx, strings.TrimPrefix(rest, "//"), a.create)
	case scheme == "postgres" || scheme == "postgresql":
		return openPostgres(ctx, address, a.create)
	case scheme == "nats" || scheme == "tls":
		return openJetStream(ctx, address, denied)
	case scheme == "kafka":
		return openKafka(ctx, address)
	case scheme == "file":
		return openDirectory(ctx, strings.TrimPrefix(rest, "//"), a.clock, a.note)
	}
	return nil, usagef("the URL of the database must begin with sqlite:, postgres://, nats://, tls://, kafka:// or file:")
}

func openSQLite(ctx context.Context, path string, create bool) (*database, error) {
	path, err := url.PathUnescape(path)
	if err != nil {
		return nil, usagef("the URL of the database: %v", err)
	}
	info, err := os.Stat(path) // to open would make it
	switch {
	case create && errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no database; a program that uses weir makes it when it starts, or weir dead import -create: %w", err)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", path)
	}
	var opts []sqlite.Option
	if file, err := os.OpenFile(path, os.O_RDWR, 0); errors.Is(err, fs.ErrPermission) {
		opts = append(opts, sqlite.WithReadOnly())
	} else if err == nil {
		_ = file.Close() // nothing was written
	}
	db, err := sqlite.OpenDB(ctx, path, opts...)
	if err != nil {
		return nil, err
	}
	if create {
		if err := sqlite.Migrate(ctx, db); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	s := sqlite.New(db)
	return &database{store: inspected{s}, locks: s.Locks(), sql: db.Reader(), keys: keys.New(db.Writer(), keys.SQLite, keys.Config{}), closers: []func() error{s.Close, db.Close}}, nil
}

func openPostgres(ctx context.Context, address string, create bool) (*database, error) {
	if _, err := url.Parse(address); err != nil { // its text may be a part of the password
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
		if err := postgres.Migrate(ctx, pool); err != nil {
			pool.Close()
			return nil, err
		}
	}
	s := postgres.New(pool)
	db := stdlib.OpenDBFromPool(pool)
	closePool := func() error { // of a server that hangs, it waits for 15 s and more
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		go func() {
			defer cancel()
			pool.Close()
		}()
		<-ctx.Done()
		return nil
	}
	return &database{store: inspected{s}, locks: s.Locks(), sql: db, keys: keys.New(db, keys.PostgreSQL, keys.Config{}), closers: []func() error{s.Close, db.Close, closePool}}, nil
}

func (db *database) close() error {
	errs := make([]error, len(db.closers))
	for i, f := range db.closers {
		errs[i] = f()
	}
	return errors.Join(errs...)
}

// explain adds to the error of a missing table what that means.
func (db *database) explain(ctx context.Context, err error) error {
	if err == nil || !lacksTable(err) {
		return err
	}
	for _, table := range []struct{ name, component string }{
		{"weir_messages", "store"}, {"weir_locks", "store"}, {"weir_keys", "keys"}, // of both databases
	} {
		var component string
		if strings.Contains(err.Error(), table.name) && db.sql.QueryRowContext(ctx,
			"SELECT component FROM weir_migrations WHERE component LIKE $1 LIMIT 1", "%"+table.component).Scan(&component) == nil {
			return fmt.Errorf("the table %s was made, and has been dropped: restore it, or run DELETE FROM weir_migrations "+
				"WHERE component = '%s', after which the program makes it anew and empty when it starts: %w", table.name, component, err)
		}
	}
	return fmt.Errorf("the database has no such table; a program that uses weir makes its tables when it starts, those of queues also weir dead import -create: %w", err)
}

// lacksTable reports whether err says that there is no such table.
func lacksTable(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == "42P01"
	}
	return err != nil && strings.Contains(err.Error(), "no such table")
}

// withoutSecrets returns a text in which the passwords of URLs are hidden.
func withoutSecrets(text string, urls ...string) string {
	for _, address := range urls {
		for _, secret := range secrets(address) {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return text
}

// secrets returns the password of a URL in the forms in which it may appear.
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
	for _, s := range []string{rest, authority} { // a slash may stand in the password, or an @ behind it
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
