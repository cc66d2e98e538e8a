package flights

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Format is an output format.
type Format string

// The formats.
const (
	CSV   Format = "csv"
	JSONL Format = "jsonl"
)

// ParseFormat returns the format of a name.
func ParseFormat(name string) (Format, error) {
	f := Format(strings.ToLower(name))
	if f == CSV || f == JSONL {
		return f, nil
	}
	return "", fmt.Errorf("unknown format %q: csv or jsonl", name)
}

// Header returns the text before the first flight.
func (f Format) Header() []byte {
	if f == JSONL {
		return nil
	}
	columns := []string{"date", "delay", "distance", "great_circle"}
	for _, side := range []string{"origin", "destination"} {
		columns = append(columns, side)
		for _, c := range []string{"name", "city", "state", "latitude", "longitude"} {
			columns = append(columns, side+"_"+c)
		}
	}
	return csvLine(columns)
}

// Line formats an enriched flight, with its line end. The result depends only on the
// flight.
func (f Format) Line(flight Flight) []byte {
	if f == JSONL {
		return jsonLine(flight)
	}
	columns := []string{
		flight.Departure.Format(departureLayout),
		strconv.Itoa(flight.Delay),
		strconv.Itoa(flight.Distance),
		strconv.Itoa(flight.GreatCircle()),
	}
	for _, a := range []Airport{flight.Origin, flight.Destination} {
		columns = append(columns, a.IATA, a.Name, a.City, a.State, formatFloat(a.Latitude), formatFloat(a.Longitude))
	}
	return csvLine(columns)
}

func csvLine(columns []string) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(columns) // never fails on a buffer
	w.Flush()
	return b.Bytes()
}

func jsonLine(f Flight) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(struct { // always encodes
		Date        string  `json:"date"`
		Delay       int     `json:"delay"`
		Distance    int     `json:"distance"`
		GreatCircle int     `json:"great_circle"`
		Origin      Airport `json:"origin"`
		Destination Airport `json:"destination"`
	}{f.Departure.Format(departureLayout), f.Delay, f.Distance, f.GreatCircle(), f.Origin, f.Destination})
	return b.Bytes()
}
