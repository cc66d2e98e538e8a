//go:build unix

package keystest

import (
	"context"
	"net/http"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/internal/testing/golden"
)

func formatRequest() keys.Request {
	return keys.Request{
		User: "ann", Key: "1", Method: "POST", Path: "/orders", Query: "a=b", ContentType: "application/json", Body: []byte(`{"n":5}`),
	}
}

// format checks the tables with a request that finished after one step (law W4). The
// golden file is in the package that runs this test.
func (b *bench) format() {
	handler := func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		_, err := keys.Call(ctx, run, "charge", func(context.Context, string) (int, error) { return 5, nil })
		if err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusOK, "done")
	}
	req := formatRequest()
	_, err := b.keys.Operation("order", handler).Do(b.Context(), req)
	require.NoError(b, err)
	const id = "0af7651916cd43dd8448eb211c80319c" // replaces the random id
	for _, statement := range []string{           // ordered so that each step stays linked to a request
		"INSERT INTO weir_keys (id, principal, idempotency_key, operation, request_method, request_path, request_query, request_type, request_body, fingerprint," +
			" created_at, last_run_at, locked_at, expires_at, fence, recovery_point, response) SELECT '" + id + "', principal, 'other', operation, request_method," +
			" request_path, request_query, request_type, request_body, fingerprint, created_at, last_run_at, locked_at, expires_at, fence, recovery_point, response FROM weir_keys",
		"UPDATE weir_key_steps SET key_id = '" + id + "'",
		"DELETE FROM weir_keys WHERE id <> '" + id + "'",
		"UPDATE weir_keys SET idempotency_key = '1'",
	} {
		_, err := b.db.ExecContext(b.Context(), statement)
		require.NoError(b, err)
	}
	tables := golden.Database{
		DB: b.db, Files: b.setup.Dialect.Migrations(), Tables: []string{"weir_keys", "weir_key_steps"}, Postgr: b.setup.Dialect == keys.PostgreSQL,
	}
	script := golden.Written(b, "keys-2.sql", tables.Script(b))

	old := watch(b.setup.Driver, b.setup.New(b.T), &Hooks{})
	defer func() { require.NoError(b, old.Close()) }()
	golden.Run(b.Context(), b, old, script)
	require.NoError(b, keys.New(old, b.setup.Dialect, keys.Config{}).Migrate(b.Context()))
	again := keys.New(old, b.setup.Dialect, keys.Config{Clock: b.clock})
	response, err := again.Operation("order", func(context.Context, *keys.Run) (exactlyonce.Response, error) {
		return exactlyonce.Response{}, context.Canceled // must not run again
	}).Do(b.Context(), req)
	require.NoError(b, err)
	require.Equal(b, "\"done\"\n", string(response.Body))
}
