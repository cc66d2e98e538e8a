package durable

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

// Proof is the result of comparing the files.
type Proof struct {
	Read     int // flights in the input
	Enriched int // flights found in the output
	Missing  int // flights neither in the output nor given up
	Problems []string
}

// Prove reads the whole input and the whole output again. Every flight must be in the
// output exactly once, or given up. If the output is ordered, the flights must be in
// input order. From the runs' memory it uses only the list of flights given up.
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

	p, lines := &Proof{}, output{bufio.NewReader(f)}
	format := out.kind.Format
	if header := string(format.Header()); header != "" {
		if line, err := lines.next(); err != nil || line != header {
			p.problem("the output does not begin with its header but with %q", line)
			return p, err
		}
	}
	awaited := make(map[string]int) // lines of an unordered output
	for {
		flight, err := r.Read()
		if errors.Is(err, io.EOF) {
			return p, p.rest(lines, awaited)
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
		line, err := lines.next()
		switch {
		case err != nil:
			return nil, err
		case line == "":
			p.Missing++
		case line != want:
			p.problem("flight %d of the output is not that of line %d of the input: %q", p.Enriched+1, flight.Line, line)
			return p, nil // the rest would only repeat the problem
		default:
			p.Enriched++
		}
	}
}

// rest compares the rest of the output with the expected lines.
func (p *Proof) rest(lines output, awaited map[string]int) error {
	for {
		line, err := lines.next()
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		if awaited[line] == 0 {
			p.problem("too often in the output, or not of the input: %q", line)
			return nil
		}
		awaited[line]--
		p.Enriched++
	}
	for _, n := range awaited {
		p.Missing += n
	}
	return nil
}

// output reads a file line by line.
type output struct{ *bufio.Reader }

// next returns the next line, or "" at the end.
func (o output) next() (string, error) {
	line, err := o.ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil // an unterminated line matches no expected line
	}
	return line, err
}

func (p *Proof) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}
