package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/hclient"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/hbase-like/internal/store"
	"github.com/weirflow/weir/strategies"
)

// Summary is printed at the end of a run.
type Summary struct {
	Config      Config
	Input       string // the name of the input
	Elapsed     time.Duration
	Interrupted bool
	Books       ledger.Balance
	Lookups     []asyncop.Stats // one per look-up
	Client      hclient.Stats
	Store       store.Stats
	NotTaken    int          // flights read but not accepted by the pipeline, after an interrupt
	Checkpoints *Checkpoints // nil without -checkpoint
	Proof       error        // nil if every flight came out exactly once and in order
}

// Checkpoints holds the checkpoint part of a summary. With checkpoints the books cover
// all runs, but latencies, retries and calls cover only the last run.
type Checkpoints struct {
	Resumed uint64 // number of the checkpoint, or 0 for a fresh start
	Before  int    // flights written before the run resumed
	Nothing bool   // the job was done already
}

// Write writes the summary after an empty line, in lines of at most 80 columns.
func (s Summary) Write(w io.Writer) error {
	var sum asyncop.Stats
	for _, l := range s.Lookups {
		sum.Attempts += l.Attempts
		sum.RetriesOnResult += l.RetriesOnResult
		sum.RetriesOnError += l.RetriesOnError
		sum.Timeouts += l.Timeouts
	}
	b := s.Books
	var out strings.Builder
	line := func(label, format string, args ...any) {
		wrap(&out, 24, fmt.Sprintf("  %-22s%s", label, fmt.Sprintf(format, args...)))
	}
	mode := "unordered"
	if s.Config.Ordered {
		mode = "ordered"
	}
	faults := "no faults"
	if s.Config.Faults {
		faults = fmt.Sprintf("faults of seed %d", s.Config.Seed)
	}
	out.WriteByte('\n')
	wrap(&out, 2, fmt.Sprintf("%s: %s, %s, %s", s.Input, mode, strategy(s.Config.Retry), faults))
	out.WriteByte('\n')

	before := 0
	if c := s.Checkpoints; c != nil {
		before = c.Before
		line("resumed from", "%s", c.origin())
	}
	line("elements in", "%s", count(b.Read))
	line("enriched", "%s", count(b.Enriched))
	line("retried", "%s%s", count(b.Retried), share(b.Retried, b.Read))
	line("timed out", "%s", count(sum.Timeouts))
	line("given up", "%s", count(b.GivenUp))
	if s.Interrupted && s.Checkpoints != nil {
		line("to be done", "%s", count(b.Missing))
	} else if s.Interrupted {
		line("abandoned", "%s in flight when the time to drain was over", count(b.Abandoned))
		line("not started", "%s read, but not begun", count(s.NotTaken))
	}
	out.WriteByte('\n')
	line("calls made", "%s, of them retries %s", count(sum.Attempts), count(sum.Retries()))
	line("  no row yet", "%s", count(sum.RetriesOnResult))
	line("  errors", "%s (the client saw %s × region not served, %s × connection lost)", count(sum.RetriesOnError),
		count(s.Client.NotServing), count(s.Client.ConnectionErrors))
	line("latency", "p50 %s   p99 %s   max %s   (first call to output)", quantiles(b.Latency)...)
	if b.Retried > 0 {
		if b.LatencyRetried.Max > 0 { // false if all of them were given up
			line("  of retried flights", "p50 %s   p99 %s   max %s", quantiles(b.LatencyRetried)...)
		}
		line("  retries of those", "p50 %d   p99 %d   max %d", b.Retries.P50, b.Retries.P99, b.Retries.Max)
	}
	line("throughput", "%s flights/s in %s", rate(b.Ended()-before, s.Elapsed), duration(s.Elapsed))
	if s.Config.Faults {
		line("trouble", "%s", trouble(s.Store))
	}
	if len(b.Losses) > 0 {
		out.WriteString("\ngiven up:\n")
		for _, l := range b.Losses {
			wrap(&out, 4, fmt.Sprintf("  airport %q: %s, %s (%s)", l.Airport, plural(l.Flights, "flight"), l.Why, places(l)))
		}
	}
	out.WriteByte('\n')
	wrap(&out, 0, strings.TrimSuffix(s.conclusion(), "\n"))
	_, err := io.WriteString(w, out.String())
	return err
}

// summaryColumns is the width of the summary.
const summaryColumns = 80

// wrap writes a line and continues it on indented lines if it is too long. It breaks at
// single spaces.
func wrap(out *strings.Builder, indent int, line string) {
	for utf8.RuneCountInString(line) > summaryColumns {
		at, column := 0, 0
		for i, r := range line {
			if column > summaryColumns {
				break
			}
			if r == ' ' && column > indent && line[i-1] != ' ' {
				at = i
			}
			column++
		}
		if at == 0 {
			break // one long word
		}
		out.WriteString(strings.TrimRight(line[:at], " ") + "\n")
		line = strings.Repeat(" ", indent) + strings.TrimLeft(line[at:], " ")
	}
	out.WriteString(line + "\n")
}

func (s Summary) conclusion() string {
	if s.Proof != nil {
		return "FAILED: " + s.Proof.Error() + "\n"
	}
	order := ""
	if s.Config.Ordered {
		order = ", in input order"
	}
	b := s.Books
	if c := s.Checkpoints; c != nil {
		return c.conclusion(s, order)
	}
	if s.Interrupted {
		return fmt.Sprintf("interrupted: of %s, %s came out enriched and %s given up%s; "+
			"%s abandoned, %s not started; none twice, none lost.\n",
			plural(b.Read, "flight"), count(b.Enriched), count(b.GivenUp), order, count(b.Abandoned), count(s.NotTaken))
	}
	return fmt.Sprintf("proven: %s came out exactly once%s: %s enriched, %s given up.\n",
		plural(b.Read, "flight"), order, count(b.Enriched), count(b.GivenUp))
}

// origin describes the run's starting point.
func (c Checkpoints) origin() string {
	switch {
	case c.Resumed == 0:
		return "the beginning: there was no checkpoint"
	case c.Nothing:
		return fmt.Sprintf("checkpoint %d, which has all %s: the job was done already", c.Resumed, plural(c.Before, "flight"))
	}
	return fmt.Sprintf("checkpoint %d, with %s done", c.Resumed, plural(c.Before, "flight"))
}

func (c Checkpoints) conclusion(s Summary, order string) string {
	b := s.Books
	if s.Interrupted {
		return fmt.Sprintf("suspended in a last checkpoint: of %s, %s are in the output file and %s given up%s, none twice; "+
			"start again with the same flags to go on.\n", plural(b.Read, "flight"), count(b.Enriched), count(b.GivenUp), order)
	}
	return fmt.Sprintf("proven: %s are in the output file exactly once%s, or given up: %s enriched, %s given up.\n",
		plural(b.Read, "flight"), order, count(b.Enriched), count(b.GivenUp))
}

func strategy(r Retry) string {
	retries := plural(r.Retries, "retry")
	if r.Retries == strategies.Unlimited {
		retries = "unlimited retries"
	}
	delays := fmt.Sprintf("%v × %v up to %v", r.Delay, r.Multiplier, r.MaxDelay)
	if r.Strategy == "fixed" {
		delays = fmt.Sprintf("every %v", r.Delay)
	}
	if r.Jitter != "none" {
		delays += " with " + r.Jitter + " jitter"
	}
	return retries + " " + delays
}

func trouble(s store.Stats) string {
	kinds := []store.Kind{store.Move, store.Drop, store.Slow, store.Crash}
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d × %s", n, what))
		}
	}
	add(s.LateRows, "late row")
	for _, k := range kinds {
		add(s.Events[k], string(k))
	}
	if len(parts) == 0 {
		return "none, the run was too short for it"
	}
	return strings.Join(parts, ", ")
}

func places(l ledger.Loss) string {
	at := make([]string, 0, len(l.Lines)+1)
	for _, n := range l.Lines {
		at = append(at, strconv.Itoa(n))
	}
	if l.Flights > len(l.Lines) {
		at = append(at, "…")
	}
	if l.Flights == 1 {
		return "line " + at[0]
	}
	return "lines " + strings.Join(at, ", ")
}

func quantiles(q ledger.Quantiles[time.Duration]) []any {
	return []any{duration(q.P50), duration(q.P99), duration(q.Max)}
}

// duration formats d, rounded to three digits.
func duration(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func rate(n int, d time.Duration) string {
	perSecond := float64(n) / max(d.Seconds(), 1e-3)
	if perSecond < 10 {
		return fmt.Sprintf("%.1f", perSecond)
	}
	return count(int(perSecond))
}

func share(part, whole int) string {
	if whole == 0 || part == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f %%)", 100*float64(part)/float64(whole))
}

func plural(n int, word string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(word, "y"):
		word = strings.TrimSuffix(word, "y") + "ies"
	default:
		word += "s"
	}
	return count(n) + " " + word
}

// count groups digits by thousands.
func count[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	var groups []string
	for len(s) > 3 && s[len(s)-4] != '-' {
		groups = append(groups, s[len(s)-3:])
		s = s[:len(s)-3]
	}
	groups = append(groups, s)
	slices.Reverse(groups)
	return strings.Join(groups, ",")
}
