package flights

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Flight is the pipeline's element. At first it has only the codes of its airports; the
// look-ups fill in the rest.
type Flight struct {
	Seq         int // position in the input, from 0
	Line        int // in the file, from 1
	Departure   time.Time
	Delay       int // on arrival, in minutes; negative is early
	Distance    int // in miles
	Origin      Airport
	Destination Airport
}

// Airport is a row of the dimension table. Before its look-up it has only a code.
type Airport struct {
	IATA      string  `json:"iata"`
	Name      string  `json:"name"`
	City      string  `json:"city"`
	State     string  `json:"state"`
	Latitude  float64 `json:"latitude"`
	Longitude float64 `json:"longitude"`
}

// Columns of an airport's row.
const (
	colName      = "info:name"
	colCity      = "info:city"
	colState     = "info:state"
	colLatitude  = "geo:latitude"
	colLongitude = "geo:longitude"
)

// Cells returns the airport's row.
func (a Airport) Cells() map[string]string {
	return map[string]string{
		colName: a.Name, colCity: a.City, colState: a.State,
		colLatitude: formatFloat(a.Latitude), colLongitude: formatFloat(a.Longitude),
	}
}

// AirportFromCells is the inverse of Airport.Cells.
func AirportFromCells(iata string, cells map[string]string) (Airport, error) {
	latitude, err := strconv.ParseFloat(cells[colLatitude], 64)
	if err != nil {
		return Airport{}, fmt.Errorf("airport %s: latitude: %w", iata, err)
	}
	longitude, err := strconv.ParseFloat(cells[colLongitude], 64)
	if err != nil {
		return Airport{}, fmt.Errorf("airport %s: longitude: %w", iata, err)
	}
	return Airport{iata, cells[colName], cells[colCity], cells[colState], latitude, longitude}, nil
}

// Unresolved returns the code of the first airport that was not looked up yet, or "".
func (f Flight) Unresolved() string {
	for _, a := range []Airport{f.Origin, f.Destination} {
		if a == (Airport{IATA: a.IATA}) {
			return a.IATA
		}
	}
	return ""
}

// GreatCircle returns the shortest distance between the airports in miles.
func (f Flight) GreatCircle() int {
	const earthRadius, degree = 3958.8, math.Pi / 180
	a, b := f.Origin, f.Destination
	sinLat := math.Sin((b.Latitude - a.Latitude) * degree / 2)
	sinLon := math.Sin((b.Longitude - a.Longitude) * degree / 2)
	h := sinLat*sinLat + math.Cos(a.Latitude*degree)*math.Cos(b.Latitude*degree)*sinLon*sinLon
	return int(math.Round(2 * earthRadius * math.Asin(math.Min(1, math.Sqrt(h)))))
}

func formatFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
