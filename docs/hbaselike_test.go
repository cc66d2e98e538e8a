package docs_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/hbase"
)

// Flight and Airport are the types of a reader of ../examples/hbase-like/README.md.
type (
	Flight  struct{ Origin, Destination Airport }
	Airport struct{ IATA, Name string }
)

// get looks up an airport of each flight.
func get(client gohbase.Client, of func(*Flight) *Airport) asyncop.AsyncFunction[Flight, Flight] {
	return hbase.Get(client,
		func(ctx context.Context, f Flight) (*hrpc.Get, error) {
			return hrpc.NewGetStr(ctx, "airports", of(&f).IATA)
		},
		func(f Flight, row *hrpc.Result) (Flight, error) { // an absent row is no result
			for _, cell := range row.Cells {
				if string(cell.Qualifier) == "name" {
					of(&f).Name = string(cell.Value)
				}
			}
			return f, nil
		})
}

// airportRows is a client that knows one row.
type airportRows struct{ gohbase.Client }

func (airportRows) Get(g *hrpc.Get) (*hrpc.Result, error) {
	if string(g.Key()) != "SFO" {
		return &hrpc.Result{}, nil
	}
	return &hrpc.Result{Cells: []*hrpc.Cell{{Family: []byte("f"), Qualifier: []byte("name"), Value: []byte("San Francisco")}}}, nil
}

func TestHBaseLikeSnippet(t *testing.T) {
	op := asyncop.OrderedWait(get(airportRows{}, func(f *Flight) *Airport { return &f.Origin }), time.Minute, 10)
	var flights []Flight
	for f, err := range op.Results(slices.Values([]Flight{{Origin: Airport{IATA: "SFO"}}, {Origin: Airport{IATA: "???"}}})) {
		require.NoError(t, err)
		flights = append(flights, f)
	}
	require.Equal(t, []Flight{{Origin: Airport{IATA: "SFO", Name: "San Francisco"}}}, flights)
}
