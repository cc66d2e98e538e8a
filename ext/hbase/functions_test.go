package hbase_test

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	log "github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/hbase"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// patience is the timeout of calls that must not time out.
const patience = 4 * time.Minute

func init() { log.SetOutput(io.Discard) } // gohbase logs each look-up that fails

// increments adds 1 to a counter in the row of an element, and returns its new value.
func increments(client gohbase.Client, timeout time.Duration) asyncop.AsyncFunction[string, int64] {
	return hbase.Mutate(client, timeout,
		func(ctx context.Context, key string) (*hrpc.Mutate, error) {
			return hrpc.NewIncStrSingle(ctx, "t", key, "f", "count", 1)
		},
		func(_ string, r *hrpc.Result) (int64, error) {
			return int64(binary.BigEndian.Uint64(r.Cells[0].Value)), nil
		})
}

// puts writes a row for an element.
func puts(client gohbase.Client, table, family string) asyncop.AsyncFunction[string, string] {
	return hbase.Mutate(client, 0,
		func(ctx context.Context, key string) (*hrpc.Mutate, error) {
			return hrpc.NewPutStr(ctx, table, key, map[string]map[string][]byte{family: {"name": []byte("name of " + key)}})
		},
		func(key string, _ *hrpc.Result) (string, error) { return key, nil })
}

// gets reads the name in the row of an element.
func gets(client gohbase.Client, table string) asyncop.AsyncFunction[string, string] {
	return hbase.Get(client,
		func(ctx context.Context, key string) (*hrpc.Get, error) { return hrpc.NewGetStr(ctx, table, key) },
		func(_ string, row *hrpc.Result) (string, error) { return string(row.Cells[0].Value), nil })
}

// scans reads the keys that begin with an element.
func scans(client gohbase.Client) asyncop.AsyncFunction[string, string] {
	return hbase.Scan(client,
		func(ctx context.Context, prefix string) (*hrpc.Scan, error) {
			return hrpc.NewScanRangeStr(ctx, "t", prefix, prefix+"~", hrpc.NumberOfRows(2))
		},
		func(_ string, row *hrpc.Result) (string, error) { return string(row.Cells[0].Row), nil })
}

// once is a strategy that never retries.
type once[OUT any] struct{}

func (once[OUT]) Decide(context.Context, *predicates.Attempt[OUT]) (strategies.Action, error) {
	return strategies.Action{}, nil
}

// callOnce makes one attempt, and returns its results, or the failure.
func callOnce[OUT any](fn asyncop.AsyncFunction[string, OUT], element string) (results []OUT, failure asyncop.Failure[string]) {
	op := asyncop.OrderedWaitWithRetry(fn, patience, 1, strategies.ReasonAware(hbase.Classifier[OUT](), once[OUT]{}),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)),
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			failure = f
			return nil
		}))
	for result := range op.Results(slices.Values([]string{element})) {
		results = append(results, result)
	}
	return results, failure
}

func TestFunctions_MissingArguments(t *testing.T) {
	get := func(context.Context, int) (*hrpc.Get, error) { return nil, nil }
	scan := func(context.Context, int) (*hrpc.Scan, error) { return nil, nil }
	mutate := func(context.Context, int) (*hrpc.Mutate, error) { return nil, nil }
	result := func(int, *hrpc.Result) (int, error) { return 0, nil }
	client := &regionOnly{}
	for want, construct := range map[string]func(){
		"hbase: Get: nil client":                      func() { hbase.Get(nil, get, result) },
		"hbase: Get: nil function for the request":    func() { hbase.Get[int, int](client, nil, result) },
		"hbase: Get: nil function for the result":     func() { hbase.Get[int, int](client, get, nil) },
		"hbase: Scan: nil client":                     func() { hbase.Scan(nil, scan, result) },
		"hbase: Mutate: nil client":                   func() { hbase.Mutate(nil, 0, mutate, result) },
		"hbase: Mutate: nil function for the request": func() { hbase.Mutate[int, int](client, 0, nil, result) },
		"hbase: Mutate: timeout -1ns is negative: use 0 for no limit": func() {
			hbase.Mutate(client, -1, mutate, result)
		},
		"hbase: Mutate: hbase_test.reader has no method SendRPC: use a client of gohbase.NewClient": func() {
			hbase.Mutate(reader{}, 0, mutate, result)
		},
	} {
		assert.PanicsWithValue(t, want, construct)
	}
}

// reader is a client that is not gohbase's own.
type reader struct{ gohbase.Client }
