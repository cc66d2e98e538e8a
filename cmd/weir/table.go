package main

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const (
	gap          = 2  // spaces between columns
	defaultWidth = 80 // width of a terminal with unknown size

	narrow = 110 // below this width the log leaves out what matters less
)

type column struct {
	name  string
	least int  // may be cut to this width; 0 means as a last resort
	whole bool // never cut: an argument for other commands, printed by -o name
	right bool
	error bool // an error: see cutError
}

// output is the flag -o.
type output struct{ a *app }

func (o output) flag(c *cobra.Command) {
	c.Flags().VarP(o, "output", "o", "`FORMAT`: wide cuts nothing, name prints the names or ids alone, json is --json")
}

// Set implements pflag.Value.
func (o output) Set(format string) error {
	switch format {
	case "wide":
		o.a.wide = true
	case "name":
		o.a.names = true
	case "json":
		o.a.json = true
	default:
		return errors.New("it must be wide, name or json")
	}
	return nil
}

func (output) String() string { return "" }

// Type implements pflag.Value.
func (output) Type() string { return "format" }

// width returns the line width: COLUMNS, or the terminal's, or unlimited.
func (a *app) width() int {
	if a.wide {
		return math.MaxInt
	}
	return a.widthOf(a.out)
}

func (a *app) widthOf(f *os.File) int {
	if n, err := strconv.Atoi(a.env("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if !isTerminal(f) {
		return math.MaxInt
	}
	if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
		return n
	}
	return defaultWidth
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// table writes rows, at most as wide as the terminal, with escaped cells.
func (a *app) table(columns []column, rows [][]string) error {
	return (&pages{app: a, columns: columns}).write(rows)
}

// pages is a table that is written page by page, to save memory. The first page
// determines the widths of columns.
type pages struct {
	app     *app
	columns []column
	widths  []int // nil before the first page
}

func (p *pages) write(rows [][]string) error {
	for _, row := range rows {
		for i := range row {
			row[i] = escaped(row[i])
		}
	}
	if p.app.names {
		var b strings.Builder
		for _, row := range rows {
			b.WriteString(row[slices.IndexFunc(p.columns, func(c column) bool { return c.whole })] + "\n")
		}
		return p.app.print(b.String())
	}
	return p.app.print(p.text(rows))
}

// text formats rows with escaped cells. The first page has the header.
func (p *pages) text(rows [][]string) string {
	first := p.widths == nil
	if first {
		p.widths = make([]int, len(p.columns))
		for i, c := range p.columns {
			p.widths[i] = text.StringWidthWithoutEscSequences(c.name)
		}
	}
	limit := p.app.width()
	if first || limit == math.MaxInt {
		for _, row := range rows {
			for i := range row {
				p.widths[i] = max(p.widths[i], text.StringWidthWithoutEscSequences(row[i]))
			}
		}
	}
	fit(p.columns, p.widths, limit)
	return p.render(rows, first)
}

func (p *pages) render(rows [][]string, header bool) string {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	names := make(table.Row, len(p.columns))
	configs := make([]table.ColumnConfig, len(p.columns))
	for i, c := range p.columns {
		names[i] = c.name
		configs[i] = table.ColumnConfig{Number: i + 1, WidthMin: p.widths[i], Hidden: p.widths[i] == 0}
		if !c.whole {
			configs[i].WidthMax, configs[i].WidthMaxEnforcer = p.widths[i], ellipsis
		}
		if c.error {
			configs[i].WidthMaxEnforcer = cutError
		}
		if c.right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.SetColumnConfigs(configs)
	if header {
		t.AppendHeader(names)
	}
	for _, row := range rows {
		cells := make(table.Row, len(row))
		for i := range row {
			cells[i] = row[i]
		}
		t.AppendRow(cells)
	}
	return t.Render() + "\n"
}

func ellipsis(cell string, width int) string { return text.Snip(cell, width, "…") }

// fit narrows columns, the widest first, until all fit. If need be, it cuts the last
// columns to zero width.
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
		if columns[i].whole {
			continue
		}
		less := min(widths[i], total-limit)
		widths[i] -= less
		total -= less
	}
}

func (a *app) object(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.print(escapedJSON(string(line)) + "\n")
}

// request is how the error of an HTTP call begins: its method and its URL, which package
// net/http quotes.
var request = regexp.MustCompile(`^[A-Z][A-Za-z]{2,6} "?https?:\S*: `)

// cutError cuts an error. It cuts off the request of an HTTP call first, because the
// beginning of the error may show only that.
func cutError(cell string, width int) string {
	if text.StringWidthWithoutEscSequences(cell) > width {
		cell = request.ReplaceAllString(cell, "")
	}
	return ellipsis(cell, width)
}

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// age formats a duration in its one or two largest units.
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
