// Package data embeds the input of the example in the binary, so that it runs from any
// directory. README.md in this directory gives the source of the data.
package data

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
)

// FlightRows is the number of flights in the embedded file.
const FlightRows = 20_000

//go:embed flights.csv.gz
var flights []byte

//go:embed airports.csv.gz
var airports []byte

// Flights reads the embedded flights, as CSV with a header.
func Flights() io.Reader { return unzip(flights) }

// Airports reads the embedded airports, as CSV with a header.
func Airports() io.Reader { return unzip(airports) }

func unzip(b []byte) io.Reader {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		panic("data: embedded file is damaged: " + err.Error())
	}
	return r
}
