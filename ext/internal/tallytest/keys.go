package tallytest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
)

// NewKeys returns keys in a database with 5 requests of 2 users, of which 3 are
// unfinished and 1 is overdue. One attempt was invalid. While down is true the database
// does not answer.
func NewKeys(ctx context.Context, down *bool) (*keys.Keys, *sql.DB) {
	db := sql.OpenDB(connector{down})
	k := keys.New(db, keys.SQLite, keys.Config{})
	_, _ = k.Operation("pay", func(context.Context, *keys.Run) (exactlyonce.Response, error) { return exactlyonce.Response{}, nil }).
		Do(ctx, keys.Request{})
	return k, db
}

type connector struct{ down *bool }

func (c connector) Connect(context.Context) (driver.Conn, error) { return conn(c), nil }
func (c connector) Driver() driver.Driver                        { return nil }

type conn connector

func (conn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (conn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (conn) Close() error                        { return nil }

func (c conn) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	switch {
	case *c.down:
		return nil, ErrDown
	case strings.Contains(query, "DISTINCT"):
		return &numbers{5, 2}, nil
	case strings.Contains(query, "expires_at"):
		return &numbers{1}, nil
	default:
		return &numbers{3}, nil
	}
}

type numbers []int64

func (n *numbers) Columns() []string { return make([]string, len(*n)) }
func (*numbers) Close() error        { return nil }

func (n *numbers) Next(dest []driver.Value) error {
	if len(*n) == 0 {
		return io.EOF
	}
	for i, v := range *n {
		dest[i] = v
	}
	*n = nil
	return nil
}
