package durable

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

// Proof is what comparing the files has found.
type Proof struct {
	Read     int // flights in the input
	Enriched int // of them in the output
	Missing  int // neither there nor given up
	Problems []string
}

// Prove reads the whole input and the whole output again. Every flight must be in the output exactly once, or given up, and in
// input order if that was asked for. It relies on nothing that the runs remember but the flights given up.
func Prove(in *Input, out *Output, airports []flights.Airport) (*Proof, error) {
	table := make(map[string]flights.Airport, len(airports))
	for _, a := range airports {
		table[a.IATA] = a
	}
	givenUp := make(map[int]bool)
	for _, l := range out.book.Lost() {
		givenUp[l.Seq] = true
	}
	file, r, err := in.again()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	f, err := os.Open(out.kind.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewReader(f)
	next := func() (string, error) {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil // a line without its end equals none of the input's
		}
		return line, err
	}

	p := &Proof{}
	format := out.kind.Format
	if header := string(format.Header()); header != "" {
		if line, err := next(); err != nil || line != header {
			p.problem("the output does not begin with its header but with %q", line)
			return p, err
		}
	}
	awaited := make(map[string]int) // lines of an unordered output
	for {
		flight, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		p.Read++
		if givenUp[flight.Seq] {
			continue
		}
		flight.Origin, flight.Destination = table[flight.Origin.IATA], table[flight.Destination.IATA]
		want := string(format.Line(flight))
		if !out.kind.Ordered {
			awaited[want]++
			continue
		}
		line, err := next()
		switch {
		case err != nil:
			return nil, err
		case line == "":
			p.Missing++
		case line != want:
			p.problem("flight %d of the output is not that of line %d of the input: %q", p.Enriched+1, flight.Line, line)
			return p, nil // the rest would only repeat it
		default:
			p.Enriched++
		}
	}
	for {
		line, err := next()
		if err != nil {
			return nil, err
		}
		if line == "" {
			break
		}
		if awaited[line] == 0 {
			p.problem("too often in the output, or not of the input: %q", line)
			return p, nil
		}
		awaited[line]--
		p.Enriched++
	}
	for _, n := range awaited {
		p.Missing += n
	}
	return p, nil
}

func (p *Proof) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}
