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

// InputError describes invalid input and its position.
type InputError struct {
	File string
	Line int // 0 means the whole file
	Err  error
}

func (e *InputError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.Err }

// departureLayout is the format of times in the input and the output: local time at the
// airport, without a zone.
const departureLayout = "2006/01/02 15:04"

// Reader reads flights. It belongs to one goroutine.
type Reader struct {
	table *table
	seq   int
}

// NewReader returns a reader of the CSV in r, and reads its header. Errors contain name.
func NewReader(name string, r io.Reader) (*Reader, error) {
	t, err := newTable(name, r, "date", "delay", "distance", "origin", "destination")
	if err != nil {
		return nil, err
	}
	return &Reader{table: t}, nil
}

// Read returns the next flight, io.EOF after the last one, or an *InputError.
func (r *Reader) Read() (Flight, error) {
	if err := r.table.next(); err != nil {
		return Flight{}, err
	}
	f := Flight{
		Seq:         r.seq,
		Line:        r.table.line(0),
		Departure:   r.table.time(0),
		Delay:       r.table.int(1),
		Distance:    r.table.int(2),
		Origin:      Airport{IATA: r.table.code(3)},
		Destination: Airport{IATA: r.table.code(4)},
	}
	if r.table.err != nil {
		return Flight{}, r.table.err
	}
	r.seq++
	return f, nil
}

// ReadAirports reads a whole CSV of airports.
func ReadAirports(name string, r io.Reader) ([]Airport, error) {
	t, err := newTable(name, r, "iata", "name", "city", "state", "latitude", "longitude")
	if err != nil {
		return nil, err
	}
	var airports []Airport
	for {
		err := t.next()
		if errors.Is(err, io.EOF) {
			return airports, nil
		}
		if err != nil {
			return nil, err
		}
		airports = append(airports, Airport{
			IATA: t.code(0), Name: t.row[1], City: t.row[2], State: t.row[3],
			Latitude: t.float(4), Longitude: t.float(5),
		})
		if t.err != nil {
			return nil, t.err
		}
	}
}

// table reads the wanted columns of a CSV row by row. err keeps the first error of a row.
type table struct {
	file   string
	csv    *csv.Reader
	wanted []string // column names, in the caller's order
	at     []int    // their indexes in the file
	row    []string // the wanted columns of the current row
	err    error
}

func newTable(file string, r io.Reader, wanted ...string) (*table, error) {
	in := bufio.NewReader(r)
	if mark, err := in.Peek(3); err == nil && string(mark) == "\ufeff" {
		_, _ = in.Discard(3) // byte order mark, which spreadsheets write
	}
	t := &table{file: file, csv: csv.NewReader(in), wanted: wanted, row: make([]string, len(wanted))}
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, &InputError{File: file, Line: 1, Err: fmt.Errorf("empty: a header with the columns %s is needed", strings.Join(wanted, ", "))}
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
			return nil, &InputError{File: file, Line: 1, Err: fmt.Errorf("missing column %q (the header has %s)", w, strings.Join(names, ", "))}
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

// wrap turns an error of the CSV reader into an InputError. It keeps io.EOF.
func (t *table) wrap(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if bad, ok := errors.AsType[*csv.ParseError](err); ok {
		return &InputError{File: t.file, Line: bad.Line, Err: bad.Err}
	}
	return &InputError{File: t.file, Err: err}
}

func (t *table) line(column int) int {
	line, _ := t.csv.FieldPos(t.at[column])
	return line
}

func (t *table) fail(column int, format string, args ...any) {
	if t.err == nil {
		t.err = &InputError{
			File: t.file,
			Line: t.line(column),
			Err:  fmt.Errorf("column %q: "+format, append([]any{t.wanted[column]}, args...)...),
		}
	}
}

func (t *table) int(column int) int {
	n, err := strconv.Atoi(t.row[column])
	if err != nil {
		t.fail(column, "%q is not a whole number", t.row[column])
	}
	return n
}

func (t *table) float(column int) float64 {
	f, err := strconv.ParseFloat(t.row[column], 64)
	if err != nil {
		t.fail(column, "%q is not a number", t.row[column])
	}
	return f
}

func (t *table) time(column int) time.Time {
	d, err := time.Parse(departureLayout, t.row[column])
	if err != nil {
		t.fail(column, "%q is not a time like 2001/01/31 23:59", t.row[column])
	}
	return d
}

func (t *table) code(column int) string {
	if t.row[column] == "" {
		t.fail(column, "empty: an airport's code is needed")
	}
	return t.row[column]
}
