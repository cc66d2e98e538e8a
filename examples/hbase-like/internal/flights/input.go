package flights

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// departureLayout is the format of times: local time at the airport, without a zone.
const departureLayout = "2006/01/02 15:04"

// Reader reads flights. It belongs to one goroutine.
type Reader struct {
	table *table
	seq   int
}

// NewReader returns a reader of the CSV in r, and reads its header. Errors have name and
// the line.
func NewReader(name string, r io.Reader) (*Reader, error) {
	t, err := newTable(name, r, "date", "delay", "distance", "origin", "destination")
	return &Reader{table: t}, err
}

// Read returns the next flight, or io.EOF after the last one.
func (r *Reader) Read() (Flight, error) {
	t := r.table
	if err := t.next(); err != nil {
		return Flight{}, err
	}
	f := Flight{
		Seq:         r.seq,
		Line:        t.line(0),
		Departure:   value(t, 0, "a time like 2001/01/31 23:59", parseDeparture),
		Delay:       value(t, 1, "a whole number", strconv.Atoi),
		Distance:    value(t, 2, "a whole number", strconv.Atoi),
		Origin:      Airport{IATA: t.code(3)},
		Destination: Airport{IATA: t.code(4)},
	}
	r.seq++
	return f, t.err
}

func parseDeparture(text string) (time.Time, error) { return time.Parse(departureLayout, text) }

// ReadAirports reads a CSV of airports, with the columns iata, name, city, state,
// country, latitude and longitude.
func ReadAirports(r io.Reader) ([]Airport, error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	var airports []Airport
	for _, row := range rows[1:] {
		a, err := AirportFromCells(row[0], map[string]string{
			colName: row[1], colCity: row[2], colState: row[3], colLatitude: row[5], colLongitude: row[6],
		})
		if err != nil {
			return nil, err
		}
		airports = append(airports, a)
	}
	return airports, nil
}

type table struct {
	file   string
	csv    *csv.Reader
	wanted []string // column names, in the caller's order
	at     []int    // indexes in the file
	row    []string
	err    error
}

func newTable(file string, r io.Reader, wanted ...string) (*table, error) {
	in := bufio.NewReader(r)
	mark, err := in.Peek(3)
	if err == nil && string(mark) == "\ufeff" {
		_, _ = in.Discard(3) // byte order mark of spreadsheets
	}
	t := &table{file: file, csv: csv.NewReader(in), wanted: wanted, row: make([]string, len(wanted))}
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:1: empty: a header with the columns %s is needed", file, strings.Join(wanted, ", "))
	}
	if err != nil {
		return nil, t.wrap(err)
	}
	names := make([]string, len(header))
	for i, h := range header {
		names[i] = strings.ToLower(strings.TrimSpace(h))
	}
	for _, w := range wanted {
		i := slices.Index(names, w)
		if i < 0 {
			return nil, fmt.Errorf("%s:1: missing column %q (the header has %s)", file, w, strings.Join(names, ", "))
		}
		t.at = append(t.at, i)
	}
	return t, nil
}

func (t *table) next() error {
	record, err := t.csv.Read()
	if err != nil {
		return t.wrap(err)
	}
	for i, at := range t.at {
		t.row[i] = strings.TrimSpace(record[at])
	}
	t.err = nil
	return nil
}

// wrap adds the place to an error of the CSV reader, except io.EOF.
func (t *table) wrap(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if bad, ok := errors.AsType[*csv.ParseError](err); ok {
		return fmt.Errorf("%s:%d: %w", t.file, bad.Line, bad.Err)
	}
	return fmt.Errorf("%s: %w", t.file, err)
}

func (t *table) line(column int) int {
	line, _ := t.csv.FieldPos(t.at[column])
	return line
}

func (t *table) fail(column int, problem string) {
	if t.err == nil {
		t.err = fmt.Errorf("%s:%d: column %q: %s", t.file, t.line(column), t.wanted[column], problem)
	}
}

// value parses a column of the current row. what names a valid text in an error.
func value[T any](t *table, column int, what string, parse func(text string) (T, error)) T {
	v, err := parse(t.row[column])
	if err != nil {
		t.fail(column, fmt.Sprintf("%q is not %s", t.row[column], what))
	}
	return v
}

func (t *table) code(column int) string {
	if t.row[column] == "" {
		t.fail(column, "empty: an airport's code is needed")
	}
	return t.row[column]
}
