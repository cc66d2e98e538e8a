// Package rowoutput has an output with rows in its state, for tests of pipelines that
// write to a table.
package rowoutput

import (
	"context"
	"encoding/json"

	"github.com/weirflow/weir/checkpoint"
)

// Output is a checkpoint.Output whose state has the rows that may not be published yet.
// Publish publishes rows, from the number first on. It may be called again for published
// rows.
type Output struct {
	Publish func(ctx context.Context, first int, rows []int) error

	first int // number of rows[0]
	rows  []int
}

var _ checkpoint.Output[int] = (*Output)(nil)

type state struct {
	First int
	Rows  []int
}

// Restore implements checkpoint.Output.
func (o *Output) Restore(ctx context.Context, b []byte) error {
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	o.first, o.rows = s.First, s.Rows
	return o.Commit(ctx, b)
}

// Write implements checkpoint.Output.
func (o *Output) Write(_ context.Context, row int) error {
	o.rows = append(o.rows, row)
	return nil
}

// Prepare implements checkpoint.Output.
func (o *Output) Prepare(context.Context) ([]byte, error) {
	return json.Marshal(state{o.first, o.rows})
}

// Commit implements checkpoint.Output.
func (o *Output) Commit(ctx context.Context, b []byte) error {
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if err := o.Publish(ctx, s.First, s.Rows); err != nil {
		return err
	}
	covered := s.First + len(s.Rows) - o.first
	o.first, o.rows = o.first+covered, append([]int(nil), o.rows[covered:]...)
	return nil
}

// Close implements checkpoint.Output.
func (o *Output) Close() error { return nil }
