// Package data embeds the example's input in the binary. README.md in this directory has
// its source.
package data

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"os"
)

//go:embed flights.csv.gz
var flights []byte

//go:embed airports.csv.gz
var airports []byte

// Airports reads the embedded airports, as CSV with a header.
func Airports() io.Reader { return unzip(airports) }

// Flights returns a CSV of flights and its name for messages: a file, or the embedded
// flights for "".
func Flights(file string) (name string, text []byte, err error) {
	if file != "" {
		text, err = os.ReadFile(file)
		return file, text, err
	}
	text, err = io.ReadAll(unzip(flights))
	return "flights.csv (built in)", text, err
}

func unzip(b []byte) io.Reader {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		panic("data: embedded file is damaged: " + err.Error())
	}
	return r
}
