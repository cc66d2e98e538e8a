package flights_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

func readAll(name string, r io.Reader) ([]flights.Flight, error) {
	in, err := flights.NewReader(name, r)
	if err != nil {
		return nil, err
	}
	var all []flights.Flight
	for {
		f, err := in.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, f)
	}
}

func TestRead(t *testing.T) {
	got, err := readAll("f.csv", strings.NewReader("date,delay,distance,origin,destination\n"+
		"2001/01/01 00:47,66,1750,DTW,LAS\n"+
		"2001/03/31 22:27,-9,83,CLT,GSO\n"))
	require.NoError(t, err)
	assert.Equal(t, []flights.Flight{
		{
			Seq: 0, Line: 2, Departure: time.Date(2001, 1, 1, 0, 47, 0, 0, time.UTC), Delay: 66, Distance: 1750,
			Origin: flights.Airport{IATA: "DTW"}, Destination: flights.Airport{IATA: "LAS"},
		},
		{
			Seq: 1, Line: 3, Departure: time.Date(2001, 3, 31, 22, 27, 0, 0, time.UTC), Delay: -9, Distance: 83,
			Origin: flights.Airport{IATA: "CLT"}, Destination: flights.Airport{IATA: "GSO"},
		},
	}, got)
}

// Columns are found by name. Byte order marks, spaces and quotes are accepted, and line
// numbers count lines of the file, not records.
func TestReadFromOtherPrograms(t *testing.T) {
	got, err := readAll("f.csv", strings.NewReader("\ufeffDestination, Remark ,origin,distance,delay,DATE\r\n"+
		"LAS,\"two\nlines\",DTW,1750,66,2001/01/01 00:47\r\n"+
		"\r\n"+
		"GSO,,\"CLT\", 83 ,-9,2001/03/31 22:27"))
	require.NoError(t, err)
	require.Len(t, got, 2)
	assert.Equal(t, "DTW", got[0].Origin.IATA)
	assert.Equal(t, "GSO", got[1].Destination.IATA)
	assert.Equal(t, 5, got[1].Line)
}

func TestFlights_ErrorNamesFileAndLine(t *testing.T) {
	const header, good = "date,delay,distance,origin,destination\n", "2001/01/01 00:47,66,1750,DTW,LAS\n"
	for name, c := range map[string]struct{ in, want string }{
		"empty":          {"", "f.csv:1: empty: a header with the columns date, delay, distance, origin, destination is needed"},
		"missing column": {"date,delay,distance,origin\n", `f.csv:1: missing column "destination" (the header has date, delay, distance, origin)`},
		"bad delay":      {header + good + "2001/01/01 00:47,late,1750,DTW,LAS\n", `f.csv:3: column "delay": "late" is not a whole number`},
		"bad distance":   {header + "2001/01/01 00:47,1,1750.5,DTW,LAS\n", `f.csv:2: column "distance": "1750.5" is not a whole number`},
		"bad date":       {header + "2001/02/30 00:47,1,1750,DTW,LAS\n", `f.csv:2: column "date": "2001/02/30 00:47" is not a time like 2001/01/31 23:59`},
		"no origin":      {header + good + good + "2001/01/01 00:47,66,1750, ,LAS\n", `f.csv:4: column "origin": empty: an airport's code is needed`},
		"first of two":   {header + "never,late,1750,DTW,LAS\n", `f.csv:2: column "date": "never" is not a time like 2001/01/31 23:59`},
		"short row":      {header + good + "2001/01/01 00:47,66\n", "f.csv:3: wrong number of fields"},
		"stray quote":    {header + `2001/01/01 00:47,6"6,1750,DTW,LAS` + "\n", `f.csv:2: bare " in non-quoted-field`},
		"bad header":     {`"date`, `f.csv:1: extraneous or missing " in quoted-field`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll("f.csv", strings.NewReader(c.in))
			require.EqualError(t, err, c.want)
		})
	}
}

func TestUnreadableInput(t *testing.T) {
	broken := errors.New("disk on fire")
	in := io.MultiReader(strings.NewReader("date,delay,distance,origin,destination\n"), iotest.ErrReader(broken))
	_, err := readAll("f.csv", in)
	require.ErrorIs(t, err, broken)
	assert.EqualError(t, err, "f.csv: disk on fire")
}

func TestEmbeddedData(t *testing.T) {
	name, text, err := data.Flights("")
	require.NoError(t, err)
	all, err := readAll(name, bytes.NewReader(text))
	require.NoError(t, err)
	assert.Len(t, all, 20_000)

	airports, err := flights.ReadAirports(data.Airports())
	require.NoError(t, err)
	byCode := make(map[string]flights.Airport)
	for _, a := range airports {
		byCode[a.IATA] = a
	}
	assert.Len(t, byCode, 3376, "codes are distinct")
	longer := 0
	for _, f := range all {
		f.Origin, f.Destination = byCode[f.Origin.IATA], byCode[f.Destination.IATA]
		require.NotEmpty(t, f.Origin.Name)
		require.NotEmpty(t, f.Destination.Name)
		if off := f.Distance - f.GreatCircle(); off < -10 || off > 60 {
			longer++
		}
	}
	assert.Less(t, longer, len(all)/50, "distances and great circles agree")
}

var detroit = flights.Airport{
	IATA: "DTW", Name: "Detroit Metropolitan-Wayne County", City: "Detroit", State: "MI",
	Latitude: 42.21205889, Longitude: -83.34883583,
}

func enriched() flights.Flight {
	return flights.Flight{
		Departure: time.Date(2001, 1, 1, 0, 47, 0, 0, time.UTC), Delay: 66, Distance: 1750,
		Origin: detroit,
		Destination: flights.Airport{
			IATA: "LAS", Name: "McCarran <International>, \"LAS\"", City: "Las Vegas", State: "NV",
			Latitude: 36.08036111, Longitude: -115.1523333,
		},
	}
}

func TestAirport_Cells(t *testing.T) {
	cells := detroit.Cells()
	got, err := flights.AirportFromCells("DTW", cells)
	require.NoError(t, err)
	assert.Equal(t, detroit, got)
	for _, column := range []string{"latitude", "longitude"} {
		bad := maps.Clone(cells)
		bad["geo:"+column] = "x"
		_, err := flights.AirportFromCells("DTW", bad)
		assert.ErrorContains(t, err, "airport DTW: "+column)
	}
}

func TestUnresolved(t *testing.T) {
	f := enriched()
	assert.Empty(t, f.Unresolved())
	f.Destination = flights.Airport{IATA: "LAS"}
	assert.Equal(t, "LAS", f.Unresolved())
	f.Origin = flights.Airport{IATA: "DTW"}
	assert.Equal(t, "DTW", f.Unresolved())
}

func TestWriteCSV(t *testing.T) {
	in := string(flights.CSV.Header()) + string(flights.CSV.Line(enriched()))
	rows, err := csv.NewReader(strings.NewReader(in)).ReadAll()
	require.NoError(t, err)
	got := make(map[string]string)
	for i, name := range rows[0] {
		got[name] = rows[1][i]
	}
	assert.Equal(t, map[string]string{
		"date": "2001/01/01 00:47", "delay": "66", "distance": "1750", "great_circle": "1745",
		"origin": "DTW", "origin_name": "Detroit Metropolitan-Wayne County", "origin_city": "Detroit", "origin_state": "MI",
		"origin_latitude": "42.21205889", "origin_longitude": "-83.34883583",
		"destination": "LAS", "destination_name": `McCarran <International>, "LAS"`, "destination_city": "Las Vegas", "destination_state": "NV",
		"destination_latitude": "36.08036111", "destination_longitude": "-115.1523333",
	}, got)
	again, err := readAll("out.csv", strings.NewReader(in))
	require.NoError(t, err, "the output is an input, too")
	assert.Equal(t, "LAS", again[0].Destination.IATA)
}

func TestWriteJSONLines(t *testing.T) {
	assert.Empty(t, flights.JSONL.Header())
	line := flights.JSONL.Line(enriched())
	assert.Equal(t, byte('\n'), line[len(line)-1])
	assert.Equal(t, 1, strings.Count(string(line), "\n"))
	assert.Contains(t, string(line), "<International>", "not escaped for the web")
	var got struct {
		Date        string
		Delay       int
		GreatCircle int `json:"great_circle"`
		Origin      flights.Airport
	}
	require.NoError(t, json.Unmarshal(line, &got))
	assert.Equal(t, "2001/01/01 00:47", got.Date)
	assert.Equal(t, 66, got.Delay)
	assert.Equal(t, 1745, got.GreatCircle)
	assert.Equal(t, detroit, got.Origin)
}

func TestParseFormat(t *testing.T) {
	for name, want := range map[string]flights.Format{"csv": flights.CSV, "JSONL": flights.JSONL} {
		got, err := flights.ParseFormat(name)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := flights.ParseFormat("xml")
	assert.EqualError(t, err, `unknown format "xml": csv or jsonl`)
}

func FuzzReader(f *testing.F) {
	f.Add("date,delay,distance,origin,destination\n2001/01/01 00:47,66,1750,DTW,LAS\n")
	f.Add("\ufeffdate,delay\n\"")
	f.Fuzz(func(t *testing.T, in string) {
		got, err := readAll("f.csv", strings.NewReader(in))
		if err != nil && !strings.HasPrefix(err.Error(), "f.csv:") {
			t.Fatalf("error without a place: %v", err)
		}
		for i, flight := range got {
			assert.Equal(t, i, flight.Seq)
			assert.NotEmpty(t, flight.Origin.IATA)
		}
	})
}
