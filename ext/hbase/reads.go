package hbase

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/weirflow/weir/asyncop"
)

// Get returns a function that reads a row. request makes the request for an element, with
// the given context; row makes the result. If the row does not exist, or row returns
// asyncop.ErrNoResult, the attempt completes without a result: predicates.EmptyResult
// matches. With hrpc.Get.ExistsOnly, an existing row has no cells. Get panics if an
// argument is nil.
func Get[IN, OUT any](
	client gohbase.Client,
	request func(ctx context.Context, in IN) (*hrpc.Get, error),
	row func(in IN, r *hrpc.Result) (OUT, error),
) asyncop.AsyncFunction[IN, OUT] {
	requireArguments("Get", client == nil, request == nil, row == nil)
	return asyncop.Blocking(func(ctx context.Context, in IN) (OUT, error) {
		var none OUT
		get, err := request(ctx, in)
		if err != nil {
			return none, unsent(err)
		}
		r, err := client.Get(get)
		if err != nil {
			return none, err
		}
		exists := len(r.Cells) > 0 || r.Exists != nil && *r.Exists
		if !exists {
			return none, asyncop.ErrNoResult
		}
		return row(in, r)
	})
}

// Scan returns a function that reads a range of rows. request makes the request for an
// element, with the given context; row makes a result of each row. After an error in the
// middle, another attempt reads the range from its beginning, so the results are complete
// or missing. They are all in memory, so keep the range short. Without rows, the attempt
// completes without a result: predicates.EmptyResult matches. Scan panics if an argument
// is nil.
func Scan[IN, OUT any](
	client gohbase.Client,
	request func(ctx context.Context, in IN) (*hrpc.Scan, error),
	row func(in IN, r *hrpc.Result) (OUT, error),
) asyncop.AsyncFunction[IN, OUT] {
	requireArguments("Scan", client == nil, request == nil, row == nil)
	return asyncop.BlockingMany(func(ctx context.Context, in IN) ([]OUT, error) {
		scan, err := request(ctx, in)
		if err != nil {
			return nil, unsent(err)
		}
		scanner := client.Scan(scan)
		defer scanner.Close() //nolint:errcheck // after the last row it is closed already
		var results []OUT
		for {
			r, err := scanner.Next()
			if errors.Is(err, io.EOF) {
				return results, nil
			}
			if err != nil {
				return nil, err
			}
			result, err := row(in, r)
			if err != nil {
				return nil, err
			}
			results = append(results, result)
		}
	})
}

func requireArguments(function string, noClient, noRequest, noResult bool) {
	for _, argument := range []struct {
		name      string
		isMissing bool
	}{{"client", noClient}, {"function for the request", noRequest}, {"function for the result", noResult}} {
		if argument.isMissing {
			panic(fmt.Sprintf("hbase: %s: nil %s", function, argument.name))
		}
	}
}
