// Command chart draws how weir compares with the best peer, from the medians that the table command writes with -json.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
)

func main() {
	err := run(os.Args[1:], os.Stdin, os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// bars are the groups of the chart, from top to bottom.
var bars = []struct{ group, title string }{
	{"W1/mode=ordered", "at once"},
	{"W1b/mode=ordered", "blocking, at once"},
	{"W2/mode=ordered/inflight=1000/backend=callback", "1 ms, 1,000 in flight"},
	{"W3/mode=unordered", "10 % retried, unordered"},
	{"W3/mode=ordered", "10 % retried, ordered"},
	{"W3b/mode=unordered", "100 ms back-off, unordered"},
	{"W3b/mode=ordered", "100 ms back-off, ordered"},
}

// series are the rows of weir that are drawn, each beside the best peer of its group.
var series = []struct {
	impl, title string
	color       color.Color
}{
	{"weir", "weir as a go-streams flow", color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}},
	{"weir-results", "weir without go-streams (Results)", color.RGBA{R: 0x74, G: 0xb3, B: 0xe3, A: 0xff}},
}

func run(args []string, in io.Reader, out io.Writer) error {
	fs := flag.NewFlagSet("chart", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "Usage: chart [flags] < results.json > chart.svg")
		fs.PrintDefaults()
	}
	format := fs.String("format", "svg", "svg, png or pdf")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	ratios, err := read(in)
	if err != nil {
		return err
	}
	p, err := chart(ratios)
	if err != nil {
		return err
	}
	w, err := p.WriterTo(20*vg.Centimeter, 11*vg.Centimeter, *format)
	if err != nil {
		return err
	}
	_, err = w.WriteTo(out)
	return err
}

// row is what the table command writes of a row.
type row struct {
	Group  string             `json:"group"`
	Impl   string             `json:"impl"`
	Kind   string             `json:"kind"`
	Median map[string]float64 `json:"median"`
}

const nsPerElem = "ns/elem"

// read returns, by group and row of weir, how many times the throughput of the best peer it has.
func read(in io.Reader) (map[string]map[string]float64, error) {
	var rows []row
	if err := json.NewDecoder(in).Decode(&rows); err != nil {
		return nil, fmt.Errorf("reading results: %w", err)
	}
	best := map[string]float64{}
	for _, r := range rows {
		ns := r.Median[nsPerElem]
		if ns <= 0 {
			return nil, fmt.Errorf("%s, %s: no %s", r.Group, r.Impl, nsPerElem)
		}
		if r.Kind == "peer" && (best[r.Group] == 0 || ns < best[r.Group]) {
			best[r.Group] = ns
		}
	}
	ratios := map[string]map[string]float64{}
	for _, r := range rows {
		if r.Kind == "weir" && best[r.Group] > 0 {
			if ratios[r.Group] == nil {
				ratios[r.Group] = map[string]float64{}
			}
			ratios[r.Group][r.Impl] = best[r.Group] / r.Median[nsPerElem]
		}
	}
	return ratios, nil
}

// chart draws the ratios as horizontal bars that begin at 1, the best peer, on a logarithmic axis.
func chart(ratios map[string]map[string]float64) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "Throughput, the best peer = 1"
	p.Title.Padding = vg.Points(8)
	p.X.Tick.Marker = plot.TickerFunc(ticks)
	p.X.Min, p.X.Max = math.Log10(0.5), 0
	p.Legend.Top, p.Legend.Padding = true, vg.Points(3)

	names := make([]string, len(bars))
	width := vg.Points(9)
	for i, s := range series {
		values := make(plotter.Values, len(bars))
		for j, b := range bars {
			ratio, ok := ratios[b.group][s.impl]
			if !ok {
				return nil, fmt.Errorf("the results have no row %s of %s", s.impl, b.group)
			}
			at := len(bars) - 1 - j // the axis begins at the bottom
			workload, _, _ := strings.Cut(b.group, "/")
			values[at], names[at] = math.Log10(ratio), fmt.Sprintf("%s: %s", workload, b.title)
			p.X.Max = max(p.X.Max, values[at])
		}
		c, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, err
		}
		c.Horizontal, c.Color, c.LineStyle.Width = true, s.color, 0
		c.Offset = width * vg.Length(float64(len(series)-1)/2-float64(i))
		labels, err := barLabels(values, c.Offset)
		if err != nil {
			return nil, err
		}
		p.Add(c, labels)
		p.Legend.Add(s.title, c)
	}
	p.X.Max += 0.25 // room for the labels
	p.NominalY(names...)
	line, err := plotter.NewLine(plotter.XYs{{X: 0, Y: -0.6}, {X: 0, Y: float64(len(bars)) - 0.4}})
	if err != nil {
		return nil, err
	}
	p.Add(line)
	return p, nil
}

// barLabels writes the ratios behind the bars.
func barLabels(values plotter.Values, offset vg.Length) (*plotter.Labels, error) {
	data := plotter.XYLabels{}
	for i, v := range values {
		ratio := math.Pow(10, v)
		format := "%.1f"
		if ratio >= 10 {
			format = "%.0f"
		}
		data.XYs = append(data.XYs, plotter.XY{X: max(0, v), Y: float64(i)})
		data.Labels = append(data.Labels, fmt.Sprintf(format, ratio))
	}
	labels, err := plotter.NewLabels(data)
	if err != nil {
		return nil, err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Size = vg.Points(8)
		labels.TextStyle[i].YAlign = text.YCenter
	}
	labels.Offset = vg.Point{X: vg.Points(3), Y: offset}
	return labels, nil
}

// ticks are 1, 2, 5, 10, … on the logarithmic axis.
func ticks(from, to float64) (marks []plot.Tick) {
	for decade := math.Floor(from); decade <= to; decade++ {
		for _, m := range []float64{1, 2, 5} {
			if at := decade + math.Log10(m); at >= from && at <= to {
				marks = append(marks, plot.Tick{Value: at, Label: fmt.Sprintf("%g ×", m*math.Pow(10, decade))})
			}
		}
	}
	return marks
}
