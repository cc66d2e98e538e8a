package main

import (
	_ "embed"
	"errors"
	"math"
	"strconv"
	"strings"
	"text/template"

	"github.com/weirflow/weir/bench"
)

// Sizes in user units. Texts are anchored at their fixed end, with room for wider fonts.
const (
	width      = 860
	plotLeft   = 400 // titles end 12 before
	plotRight  = 830
	topMargin  = 76
	barHeight  = 11
	barStep    = 13
	lineGap    = 8
	headHeight = 34
	labelRoom  = 48 // for the value beyond a bar
)

//go:embed chart.svg.tmpl
var chartTemplate string

// classes of the bars, in the order of bench.Series. The template has their colors.
var classes = []string{"one", "two", "three"}

type (
	text struct {
		X, Y         float64
		Anchor, Text string
	}
	bar struct {
		X, Y, Width float64
		Class       string
		Label       text
	}
	drawing struct {
		Width, Height, BarHeight   float64
		PaperWidth, PaperHeight    float64
		PlotLeft, PlotRight        float64
		PlotTop, PlotBottom, Unity float64
		Legend                     []bar
		Heads, Titles              []text
		Bars                       []bar
		Ticks                      []text
	}
)

// draw draws the time ratios of ordered mode as bars from 1, on a logarithmic axis.
func draw(sections []section) (string, error) {
	if len(bench.Series) > len(classes) {
		return "", errors.New("more series than colours")
	}
	low, high := 0.5, 2.0
	for _, s := range sections {
		lines, _ := s.lines()
		for _, l := range lines {
			for _, c := range l.cells {
				if !c.none {
					low, high = min(low, c.ordered.Time), max(high, c.ordered.Time)
				}
			}
		}
	}
	from, to := float64(plotLeft+labelRoom), float64(plotRight-labelRoom)
	x := func(ratio float64) float64 {
		return math.Round(from + (to-from)*math.Log(ratio/low)/math.Log(high/low))
	}
	d := drawing{
		Width: width, BarHeight: barHeight, PlotLeft: plotLeft, PlotRight: plotRight,
		PlotTop: topMargin, Unity: x(1),
	}
	for i, row := range bench.Series {
		at := float64(24 + 240*i)
		d.Legend = append(d.Legend, bar{X: at, Y: 46, Width: 24, Class: classes[i], Label: text{X: at + 32, Y: 56, Text: "weir " + row.Title}})
	}
	lineHeight := float64(barStep*len(bench.Series) + lineGap)
	y := float64(topMargin)
	for _, s := range sections {
		lines, _ := s.lines()
		if len(lines) == 0 {
			continue
		}
		d.Heads = append(d.Heads, text{X: 24, Y: y + 22, Text: s.title + " (" + s.against + " = 1)"})
		y += headHeight
		for _, l := range lines {
			d.Titles = append(d.Titles, text{X: plotLeft - 12, Y: y + lineHeight/2 + 4, Text: l.title})
			n := 0
			for _, c := range l.cells {
				if !c.none {
					n++
				}
			}
			at := y + (lineHeight-float64(n*barStep))/2
			for i, c := range l.cells {
				if c.none {
					continue
				}
				d.Bars = append(d.Bars, barOf(c.ordered.Time, x, at, classes[i]))
				at += barStep
			}
			y += lineHeight
		}
	}
	if len(d.Bars) == 0 {
		return "", errors.New("nothing has been measured")
	}
	d.PlotBottom = y + 8
	d.Height = d.PlotBottom + 52
	d.PaperWidth, d.PaperHeight = d.Width-1, d.Height-1
	for decade := math.Floor(math.Log10(low)); decade <= math.Log10(high); decade++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, decade); v >= low*0.99 && v <= high*1.01 {
				d.Ticks = append(d.Ticks, text{X: x(v), Y: d.PlotBottom + 18, Text: tick(v)})
			}
		}
	}
	var b strings.Builder
	err := template.Must(template.New("chart").Parse(chartTemplate)).Execute(&b, d)
	return b.String(), err
}

// barOf draws a bar from 1 to the ratio, to the left if weir is slower, with its value
// beyond.
func barOf(v float64, x func(float64) float64, y float64, class string) bar {
	one, end := x(1), x(v)
	b := bar{X: min(one, end), Y: y, Width: math.Abs(end - one), Class: class}
	b.Label = text{X: end + 5, Y: y + 9.5, Anchor: "start", Text: ratio(v)}
	if end < one {
		b.Label.X, b.Label.Anchor = end-5, "end"
	}
	return b
}

func tick(v float64) string {
	return strconv.FormatFloat(v, 'g', -1, 64)
}
