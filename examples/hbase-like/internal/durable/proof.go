package durable

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
)

// Proof compares the input with the output file.
type Proof struct {
	Read     int
	Enriched int
	Missing  int // neither in the output nor given up
	Problems []string
}

// Prove compares the whole output with the whole input. Every flight must be in the
// output exactly once, or given up. If the output is ordered, the flights must be in
// input order. From the runs' memory it uses only the list of flights given up.
func Prove(in *Input, out *Output, airports []flights.Airport) (*Proof, error) {
	text, err := os.ReadFile(out.kind.Path)
	if err != nil {
		return nil, err
	}
	p := &Proof{Read: len(in.all)}
	header := string(out.kind.Format.Header())
	body, hasHeader := strings.CutPrefix(string(text), header)
	if !hasHeader {
		p.problem("the output does not begin with its header but with %q", text[:min(len(text), len(header))])
		return p, nil
	}
	lines := slices.Collect(strings.Lines(body)) // an unterminated line matches no flight
	awaited := enriched(in, out, airports)
	if out.kind.Ordered {
		p.compare(awaited, lines)
	} else {
		p.count(awaited, lines)
	}
	return p, nil
}

type awaited struct {
	text   string
	number int // line in the input
}

func enriched(in *Input, out *Output, airports []flights.Airport) (lines []awaited) {
	table := make(map[string]flights.Airport, len(airports))
	for _, a := range airports {
		table[a.IATA] = a
	}
	givenUp := make(map[int]bool)
	for _, l := range out.book.Lost() {
		givenUp[l.Seq] = true
	}
	for _, f := range in.all {
		if !givenUp[f.Seq] {
			f.Origin, f.Destination = table[f.Origin.IATA], table[f.Destination.IATA]
			lines = append(lines, awaited{string(out.kind.Format.Line(f)), f.Line})
		}
	}
	return lines
}

// compare compares an ordered output, up to the first problem.
func (p *Proof) compare(want []awaited, lines []string) {
	for i, w := range want {
		if i == len(lines) {
			p.Missing = len(want) - i
			return
		}
		if lines[i] != w.text {
			p.problem("flight %d of the output is not that of line %d of the input: %q", i+1, w.number, lines[i])
			return
		}
		p.Enriched++
	}
	if len(lines) > len(want) {
		p.tooOften(lines[len(want)])
	}
}

// count compares an unordered output, up to the first problem.
func (p *Proof) count(want []awaited, lines []string) {
	left := make(map[string]int)
	for _, w := range want {
		left[w.text]++
	}
	for _, line := range lines {
		if left[line] == 0 {
			p.tooOften(line)
			return
		}
		left[line]--
		p.Enriched++
	}
	p.Missing = len(want) - p.Enriched
}

func (p *Proof) tooOften(line string) {
	p.problem("too often in the output, or not of the input: %q", line)
}

func (p *Proof) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}
