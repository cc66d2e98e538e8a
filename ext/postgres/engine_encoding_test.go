//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/message"
)

func newDatabase(server *pgtest.Server, name, encoding string) string {
	server.Exec(fmt.Sprintf("CREATE DATABASE %s ENCODING '%s' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'", name, encoding))
	return strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1)
}

func execAt(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

func makeTables(t *testing.T, url string) {
	t.Helper()
	files := (&postgres.Engine{}).Migrations()
	names, err := fs.Glob(files, "*.sql")
	require.NoError(t, err)
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		execAt(t, url, string(text))
	}
}

// Laws D4 and W2: a message that the database refuses, because of the text of its error
// or by a trigger, delays no other message, and its handling ends.
func TestEngine_RefusedMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	for i, c := range []struct {
		name     string
		encoding string
		refuses  string // statement that a trigger refuses for the message "bad"
		code     string // the trigger's error code
		text     string // the error of the calls for "bad", or empty if they succeed
		dead     int
		stays    int  // messages that stay in their queue, and are not delivered again
		notTaken bool // they are never leased
	}{
		{name: "LATIN1", encoding: "LATIN1", text: "a\u2028b", dead: 1},
		{name: "SQL_ASCII", encoding: "SQL_ASCII", text: "a\u2028b", dead: 1},
		{name: "insert refused", encoding: "UTF8", refuses: "INSERT", code: "22023", text: "no", stays: 1},
		{name: "insert refused by RAISE", encoding: "UTF8", refuses: "INSERT", code: "P0001", text: "no", stays: 1},
		{name: "insert refused by a check", encoding: "UTF8", refuses: "INSERT", code: "23514", text: "no", stays: 1},
		{name: "delete refused", encoding: "UTF8", refuses: "DELETE", code: "22023", stays: 1},
		{name: "update refused", encoding: "UTF8", refuses: "UPDATE", code: "22023", stays: 1, notTaken: true},
	} {
		url := newDatabase(server, fmt.Sprintf("weir%d", i), c.encoding)
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			makeTables(t, url)
			var log lockedBuffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			engine, err := postgres.Open(t.Context(), url, postgres.WithoutMigrations(), postgres.WithLogger(logger))
			require.NoError(t, err)
			defer engine.Close()
			const good = 200
			var ms []store.Message
			for i := range good + 1 {
				id := strconv.Itoa(i)
				if i == 20 {
					id = "bad"
				}
				ms = append(ms, store.Message{Meta: message.Meta{ID: id}, Payload: []byte(strconv.Quote(id))})
			}
			require.NoError(t, engine.Put(t.Context(), "orders", ms...))
			if c.refuses != "" {
				execAt(t, url, fmt.Sprintf(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF coalesce(NEW.meta, OLD.meta)->>'id' = 'bad' THEN RAISE 'not this one' USING ERRCODE = '%s'; END IF;
					RETURN coalesce(NEW, OLD);
				END $$`, c.code), "CREATE TRIGGER refuse BEFORE "+c.refuses+" ON weir_messages FOR EACH ROW EXECUTE FUNCTION refuse()")
			}

			orders := delivery.NewQueue[string](engine, "orders", delivery.RetryAfter(time.Hour), delivery.WithLogger(logger))
			op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, id string) (string, error) {
				if id == "bad" && c.text != "" {
					return "", errors.New(c.text)
				}
				return id, nil
			}), time.Minute, 50, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(logger))
			ctx, stop := context.WithCancel(t.Context())
			monitor := &delivery.Monitor{}
			ended := make(chan error, 1)
			go func() {
				_, err := delivery.Run(ctx, orders, op, acknowledged{}, delivery.WithLogger(logger), delivery.WithMonitor(monitor))
				ended <- err
			}()
			left := func() int {
				n, err := engine.Count(t.Context(), "orders", store.Filter{})
				require.NoError(t, err)
				return n.Messages
			}
			require.Eventually(t, func() bool { return left() == c.stays && monitor.Status().Done >= good }, time.Minute, 20*time.Millisecond)
			require.Eventually(t, func() bool {
				entries, err := engine.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 10})
				require.NoError(t, err)
				return len(entries) == 0 || c.notTaken || entries[0].LeasedUntil.IsZero() && entries[0].Meta.Due.After(time.Now().AddDate(50, 0, 0))
			}, time.Minute, 20*time.Millisecond, "the message that stays is leased, or is delivered again")
			require.NoError(t, monitor.Status().Err)
			stop()
			require.NoError(t, <-ended)
			letters, err := engine.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 10})
			require.NoError(t, err)
			require.Len(t, letters, c.dead)
			for _, l := range letters {
				require.Equal(t, `"bad"`, string(l.Payload))
				require.Contains(t, l.Meta.LastError, `a\u2028b`)
			}
			require.NotContains(t, log.String(), "the source has failed")
			if c.stays > 0 {
				require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
				if c.notTaken {
					return
				}
				require.Contains(t, log.String(), "id=bad")
				require.Positive(t, monitor.Status().SettlementsRefused)
			}
		})
	}
}

// acknowledged is a sink that discards its results.
type acknowledged struct{}

func (acknowledged) PutAll(context.Context, []message.Message[string]) error { return nil }
