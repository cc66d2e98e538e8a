package main

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

const (
	gap          = 2  // columns of a table are so far apart
	defaultWidth = 80 // of a terminal that does not say it
)

// column is one of a table.
type column struct {
	name  string
	least int // it may be cut to this width; 0: it is never cut
	right bool
}

// width returns how many characters fit in a line: as COLUMNS says, or the terminal; elsewhere there is no limit.
func (a *app) width() int {
	if n, err := strconv.Atoi(a.env("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if !isTerminal(a.out) {
		return math.MaxInt
	}
	if n, _, err := term.GetSize(int(a.out.Fd())); err == nil && n > 0 {
		return n
	}
	return defaultWidth
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// table writes rows, as wide as the terminal at most. Cells are escaped here.
func (a *app) table(columns []column, rows [][]string) error {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = text.StringWidthWithoutEscSequences(c.name)
		for _, row := range rows {
			row[i] = escaped(row[i])
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(row[i]))
		}
	}
	limit := a.width()
	fit(columns, widths, limit)

	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	header := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, c := range columns {
		header[i] = c.name
		configs[i] = table.ColumnConfig{Number: i + 1}
		if c.right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(cut(header, widths))
	for _, row := range rows {
		cells := make(table.Row, len(row))
		for i := range row {
			cells[i] = row[i]
		}
		t.AppendRow(cut(cells, widths))
	}
	return a.print(t.Render() + "\n")
}

// fit makes columns narrower, the widest first, until all fit. The last ones get nothing if that is not enough.
func fit(columns []column, widths []int, limit int) {
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for total > limit {
		widest := -1
		for i, c := range columns {
			if c.least > 0 && widths[i] > c.least && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		total--
	}
	for i := len(widths) - 1; i >= 0 && total > limit; i-- {
		less := min(widths[i], total-limit)
		widths[i] -= less
		total -= less
	}
}

// cut shortens cells to the widths of their columns.
func cut(row table.Row, widths []int) table.Row {
	for i := range row {
		row[i] = shortened(row[i].(string), widths[i])
	}
	return row
}

// shortened returns as much of s as fits, with an ellipsis if something is missing.
func shortened(s string, width int) string {
	if text.StringWidthWithoutEscSequences(s) <= width {
		return s
	}
	used := 1 // the ellipsis
	for i, r := range s {
		if used += text.RuneWidth(r); used > width {
			if width == 0 {
				return ""
			}
			return s[:i] + "…"
		}
	}
	return s
}

// object writes a value as a line of JSON.
func (a *app) object(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.print(escapedJSON(string(line)) + "\n")
}

// when returns a time for a table.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// age returns a duration in its one or two largest units.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + age(-d)
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + "s"
	case d < time.Hour:
		return two(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return two(d, time.Hour, "h", time.Minute, "m")
	case d < 10*day:
		return two(d, day, "d", time.Hour, "h")
	}
	return strconv.Itoa(int(d/day)) + "d"
}

func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	s := strconv.Itoa(int(d/large)) + largeName
	if rest := d % large / small; rest > 0 {
		s += strconv.Itoa(int(rest)) + smallName
	}
	return s
}
