package keystest

import (
	"context"
	"database/sql"
	"database/sql/driver"
)

// Hooks observe the statements of a database.
type Hooks struct {
	Step   func()                                    // before and after each statement, BEGIN, COMMIT and ROLLBACK; may be nil
	Commit func(commit, rollback func() error) error // in place of each COMMIT; may be nil
}

// watch opens a database with hooks, using the driver base.
func watch(base driver.Driver, dsn string, h *Hooks) *sql.DB {
	if h.Step == nil {
		h.Step = func() {}
	}
	return sql.OpenDB(&connector{base, dsn, h})
}

type connector struct {
	base driver.Driver
	dsn  string
	h    *Hooks
}

func (c *connector) Driver() driver.Driver { return c.base }

func (c *connector) Connect(context.Context) (driver.Conn, error) {
	inner, err := c.base.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return &conn{inner, c.h}, nil
}

type conn struct {
	driver.Conn
	h *Hooks
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.h.Step()
	defer c.h.Step()
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.h.Step()
	defer c.h.Step()
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.h.Step()
	defer c.h.Step()
	inner, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &tx{inner, c.h}, nil
}

func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type tx struct {
	inner driver.Tx
	h     *Hooks
}

func (t *tx) Commit() error {
	t.h.Step()
	defer t.h.Step()
	if t.h.Commit != nil {
		return t.h.Commit(t.inner.Commit, t.inner.Rollback)
	}
	return t.inner.Commit()
}

func (t *tx) Rollback() error {
	t.h.Step()
	defer t.h.Step()
	return t.inner.Rollback()
}
