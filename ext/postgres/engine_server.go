package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirflow/weir/ext/postgres/internal/failover"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// How [Open] waits for a server that is unavailable, like the other engines.
const (
	oneTry      = 5 * time.Second
	firstWait   = 100 * time.Millisecond // it doubles
	lastWait    = 10 * time.Second
	openWait    = 5 * time.Minute
	standbyWait = 30 * time.Second // for a failover to end
)

var errReadOnly = errors.New("takes no writes")

// open returns when the server answers and has the tables. made has the migrations it
// ran.
func (s *Engine) open(ctx context.Context, tables bool) (made []string, err error) {
	begun, pause := s.clock.Now(), firstWait
	for {
		made, err = s.tryOpen(ctx, tables)
		limit := openWait
		if errors.Is(err, errReadOnly) {
			limit = standbyWait
		}
		switch {
		case err == nil:
			return made, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case !isPassing(err) || s.clock.Since(begun) >= limit:
			return nil, err
		}
		s.logger.LogAttrs(ctx, slog.LevelWarn, "postgres: the server is not ready; retrying",
			slog.String("error", guard.Text(err)), slog.Duration("wait", pause))
		ended := wait.For(ctx, s.clock, pause)
		if ended != nil {
			return nil, fmt.Errorf("%w: %w", ended, err)
		}
		pause = min(2*pause, lastWait)
	}
}

func (s *Engine) tryOpen(ctx context.Context, tables bool) (made []string, err error) {
	if tables {
		return s.migrate(ctx)
	}
	_, err = s.inspect(ctx)
	return nil, err
}

// isPassing reports whether an error of Open may go away by itself.
func isPassing(err error) bool {
	switch state := sqlState(err); {
	case state == failover.ReadOnly, strings.HasPrefix(state, "57P"), strings.HasPrefix(state, "53"), strings.HasPrefix(state, "08"):
		return true
	case state != "":
		return false
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, errReadOnly) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded)
}

// inspect returns whether the database has the tables. It fails if the server takes no
// writes, and warns about a database that is not UTF-8.
func (s *Engine) inspect(ctx context.Context) (hasTables bool, err error) {
	try, cancel := context.WithTimeout(ctx, oneTry)
	defer cancel()
	var database, encoding, readOnly string
	var standby bool
	err = s.do(try, func() error {
		return s.pool.QueryRow(try, `SELECT current_database(), current_setting('server_encoding'), current_setting('transaction_read_only'),
			pg_is_in_recovery(), to_regclass('weir_messages') IS NOT NULL`).Scan(&database, &encoding, &readOnly, &standby, &hasTables)
	})
	switch {
	case err != nil:
		return false, err
	case standby:
		s.pool.Reset() // the next connection may reach another server
		return false, fmt.Errorf("postgres: the server is a standby, which %w: connect to the primary, or name all servers in the URL "+
			"and add target_session_attrs=read-write", errReadOnly)
	case readOnly == "on":
		s.pool.Reset()
		return false, fmt.Errorf("postgres: database %q %w: default_transaction_read_only is on for the server, the database or the user", database, errReadOnly)
	case encoding == "UTF8":
		return hasTables, nil
	case hasTables:
		s.logger.LogAttrs(ctx, slog.LevelWarn, "postgres: the database is not UTF-8: it refuses messages and error texts with characters that it cannot store; "+
			"move the tables to a database made with ENCODING 'UTF8'", slog.String("database", database), slog.String("encoding", encoding))
		return true, nil
	}
	return false, guard.MarkPermanent(fmt.Errorf("postgres: database %q has the encoding %s and cannot store every text; the tables were not made: "+
		"use a database made with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", database, encoding))
}

// SQLSTATEs of connections that the pool should drop, or cannot get.
const (
	unknownStatement   = "26000" // a prepared statement that another connection has
	duplicateStatement = "42P05" // a prepared statement that another client of a pooler has made
	tooManyConnections = "53300"
)

// How do waits for a connection in use if the server refuses another one.
const (
	firstBusy = 10 * time.Millisecond // it doubles
	lastBusy  = 200 * time.Millisecond
	busyWait  = 5 * time.Second
)

// resetEach is the least time between two resets of the pool: newer connections need
// none.
const resetEach = time.Second

// repeat runs f, and again after errors that may be due to the connection. These errors
// leave no effect.
func (s *Engine) repeat(ctx context.Context, f func() error) error {
	err := f()
	switch state := sqlState(err); state {
	case failover.ReadOnly: // the connection is to a server that is a standby, as after a failover
		s.reset()
		err = f()
	case unknownStatement, duplicateStatement:
		if s.stopPreparing(ctx) {
			err = f()
		}
	case tooManyConnections:
		begun, pause := s.clock.Now(), firstBusy
		for sqlState(err) == tooManyConnections && s.pool.Stat().TotalConns() > 0 && s.clock.Since(begun) < busyWait {
			if wait.For(ctx, s.clock, pause) != nil {
				return err
			}
			err = f()
			pause = min(2*pause, lastBusy)
		}
	}
	return err
}

// reset closes the pool's connections; those in use are closed when they are released.
func (s *Engine) reset() {
	now, last := s.clock.Now().UnixNano(), s.resetAt.Load()
	if now-last >= int64(resetEach) && s.resetAt.CompareAndSwap(last, now) {
		s.pool.Reset()
	}
}

// stopPreparing makes the pool of an engine from [Open] run statements unprepared, as
// default_query_exec_mode=exec does, for a pooler that gives each transaction another
// connection. It reports whether it could.
func (s *Engine) stopPreparing(ctx context.Context) bool {
	if !s.owned {
		return false
	}
	if s.unprepared.CompareAndSwap(false, true) {
		s.logger.LogAttrs(ctx, slog.LevelWarn, "postgres: prepared statements do not last: the server is behind a pooler of transactions, "+
			"such as PgBouncer; statements are not prepared from now on; add default_query_exec_mode=exec to the URL")
		s.pool.Reset()
	}
	return true
}

func (s *Engine) beforeConnect(_ context.Context, c *pgx.ConnConfig) error {
	if s.unprepared.Load() {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return nil
}

// isUntranslatable reports whether the database cannot store a character: a database in
// SQL_ASCII has no class of errors for that.
func isUntranslatable(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "0A000" && e.Routine == "pg_unicode_to_server"
}
