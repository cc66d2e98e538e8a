package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Result holds a row's samples of all rounds.
type Result struct {
	Row     Row
	Samples []Sample
}

// Median returns the median of a metric over all rounds, or NaN if it is missing.
func (r Result) Median(metric string) float64 { return median(r.values(metric)) }

func (r Result) values(metric string) []float64 {
	var vs []float64
	for _, s := range r.Samples {
		if v, ok := s[metric]; ok {
			vs = append(vs, v)
		}
	}
	return vs
}

func median(vs []float64) float64 {
	if len(vs) == 0 {
		return math.NaN()
	}
	vs = slices.Sorted(slices.Values(vs))
	mid := len(vs) / 2
	if len(vs)%2 == 1 {
		return vs[mid]
	}
	return (vs[mid-1] + vs[mid]) / 2
}

// Measure runs the rows of g in turn, each round from another row. run is usually
// [RunRow].
func Measure(g Group, rounds int, run func(Group, Row) (Sample, error)) ([]Result, error) {
	results := make([]Result, len(g.Rows))
	for i, r := range g.Rows {
		results[i].Row = r
	}
	for round := range rounds {
		for i := range g.Rows {
			r := &results[(i+round)%len(g.Rows)]
			s, err := run(g, r.Row)
			if err != nil {
				return nil, err
			}
			r.Samples = append(r.Samples, s)
		}
	}
	return results, nil
}

// Report has the results of a group.
type Report struct {
	Group   Group
	Results []Result
}

// best returns the peer with the lowest key, or nil.
func (r Report) best() *Result {
	var best *Result
	for i := range r.Results {
		c := &r.Results[i]
		if c.Row.Kind != Peer || math.IsNaN(c.Median(r.Group.KeyMetric())) {
			continue
		}
		if best == nil || c.Median(r.Group.KeyMetric()) < best.Median(r.Group.KeyMetric()) {
			best = c
		}
	}
	return best
}

func (r Report) weir() *Result {
	i := slices.IndexFunc(r.Results, func(c Result) bool { return c.Row.Kind == Weir })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// find returns the named row, or the best peer for BestPeer.
func (r Report) find(impl string) *Result {
	if impl == BestPeer {
		return r.best()
	}
	i := slices.IndexFunc(r.Results, func(c Result) bool { return c.Row.Impl == impl })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

// ratio returns the median of the rounds' ratios: disturbances of a round cancel out.
func ratio(a, b *Result, metric string) float64 {
	if a == nil || b == nil {
		return math.NaN()
	}
	as, bs := a.values(metric), b.values(metric)
	var ratios []float64
	for i := range min(len(as), len(bs)) {
		ratios = append(ratios, as[i]/bs[i])
	}
	return median(ratios)
}

// Finding is the measured value of an aim.
type Finding struct {
	Aim   Aim
	Value float64 // the ratio, or Own if Against is empty; NaN if a row is missing
	Own   float64 // Impl's metric; NaN if it is missing
	Met   bool
}

// Findings checks the aims of the group.
func (r Report) Findings() []Finding {
	var all []Finding
	for _, a := range r.Group.Aims {
		if a.Metric == "" {
			a.Metric = r.Group.KeyMetric()
		}
		o := Finding{Aim: a, Value: math.NaN(), Own: math.NaN()}
		if row := r.find(a.Impl); row != nil {
			o.Own = row.Median(a.Metric)
			if a.Against == "" {
				o.Value = o.Own
			} else {
				o.Value = ratio(row, r.find(a.Against), a.Metric)
			}
		}
		o.Met = o.Value <= a.Max || o.Own <= a.Or
		all = append(all, o)
	}
	return all
}

// String formats the finding as one line.
func (o Finding) String() string {
	result := "missed"
	switch {
	case math.IsNaN(o.Value):
		result = "not measured"
	case o.Met:
		result = "met"
	}
	what := fmt.Sprintf("%s %s ≤ %s", o.Aim.Impl, o.Aim.Metric, short(o.Aim.Max))
	if o.Aim.Against != "" {
		what += " × " + o.Aim.Against
	}
	if o.Aim.Or > 0 {
		what += " or " + short(o.Aim.Or)
	}
	value := short(o.Value)
	if o.Aim.Or > 0 {
		value += fmt.Sprintf(" (%s)", short(o.Own))
	}
	return fmt.Sprintf("%s: %s, %s", what, value, result)
}

// WriteMarkdown writes the report as a table.
func (r Report) WriteMarkdown(w io.Writer) error {
	key := r.Group.KeyMetric()
	rounds := 0
	for _, c := range r.Results {
		rounds = max(rounds, len(c.Samples))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s: %s elements, median of %d.\n\n",
		r.Group.Name(), r.Group.Title, thousands(float64(r.Group.Elems)), rounds)

	metrics := r.metrics()
	header := []string{"row", "kind"}
	for _, m := range metrics {
		header = append(header, m)
		if m == key {
			header = append(header, "min–max", "× best peer", "× weir")
		}
		if m == CPUPerElem {
			header = append(header, "CPU × best peer")
		}
	}
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat(" --- |", 2)+
		strings.Repeat(" ---: |", len(header)-2))
	for i := range r.Results {
		c := &r.Results[i]
		name := c.Row.Impl
		if c.Row.Kind == Weir {
			name = "**" + name + "**"
		}
		if c.Row.Div > 1 && c.Row.Kind != Floor {
			name += fmt.Sprintf(" (%s elements)", thousands(float64(r.Group.Elems/c.Row.Div)))
		}
		cells := []string{name, c.Row.Kind.String()}
		for _, m := range metrics {
			cells = append(cells, short(c.Median(m)))
			if m == key {
				vs := c.values(m)
				spread := ""
				if len(vs) > 0 {
					spread = short(slices.Min(vs)) + "–" + short(slices.Max(vs))
				}
				cells = append(cells, spread, short(ratio(c, r.best(), m)), short(ratio(c, r.weir(), m)))
			}
			if m == CPUPerElem {
				cells = append(cells, short(ratio(c, r.best(), m)))
			}
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	if findings := r.Findings(); len(findings) > 0 {
		b.WriteString("\nAims:\n\n")
		for _, o := range findings {
			fmt.Fprintf(&b, "- %v\n", o)
		}
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// metrics returns the rows' metrics: the key, the usual metrics, the others by name.
func (r Report) metrics() []string {
	usual := []string{r.Group.KeyMetric(), NsPerElem, CPUPerElem, AllocsPerElem, BytesPerElem, Efficiency}
	seen := make(map[string]bool)
	for _, c := range r.Results {
		for _, s := range c.Samples {
			for m := range s {
				seen[m] = true
			}
		}
	}
	var ms []string
	for _, m := range usual {
		if seen[m] {
			ms = append(ms, m)
			delete(seen, m)
		}
	}
	return append(ms, slices.Sorted(maps.Keys(seen))...)
}

// short formats a number with useful digits.
func short(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return ""
	case a >= 1000:
		return thousands(v)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func thousands(v float64) string {
	digits := strconv.FormatInt(int64(math.Round(math.Abs(v))), 10)
	var b strings.Builder
	if v < 0 {
		b.WriteByte('-')
	}
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
