package tallytest

import (
	"context"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

// NewResults returns the answers of a service to one client: 2 requests ran, one was
// repeated twice and then, too late, once more, and one attempt was invalid. One answer
// of 4 bytes is left.
func NewResults(ctx context.Context) *server.Results {
	r := server.NewResults(server.Config{})
	do := func(sequence int64, attempt int, first int64) {
		id := exactlyonce.ID{Client: exactlyonce.Client{1}, Sequence: sequence, Attempt: attempt, First: first}
		_, _, _ = r.Do(ctx, exactlyonce.Request{ID: id, Scope: "alice"}, func(context.Context) ([]byte, error) { return []byte("done"), nil })
	}
	do(1, 1, 0)
	do(1, 2, 0)
	do(1, 3, 0)
	do(2, 1, 2)
	do(1, 4, 0)
	do(0, 0, 0)
	return r
}
