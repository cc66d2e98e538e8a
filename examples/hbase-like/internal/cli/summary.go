package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
	"github.com/weirflow/weir/examples/internal/hclient"
	"github.com/weirflow/weir/examples/internal/hstore"
	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/strategies"
)

// Summary is printed at the end of a run.
type Summary struct {
	Config      Config
	Input       string
	Elapsed     time.Duration
	Interrupted bool
	Books       ledger.Balance
	Lookups     asyncop.Stats
	Client      hclient.Stats
	Store       hstore.Stats
	NotTaken    int          // flights read but not accepted, after an interrupt
	Checkpoints *Checkpoints // nil without -checkpoint
	Proof       error        // nil if every flight came out exactly once and in order
}

// Checkpoints is the checkpoint part of a summary. With checkpoints the books cover all
// runs, but latencies, retries and calls only the last run.
type Checkpoints struct {
	Resumed uint64 // number of the checkpoint, or 0
	Before  int    // flights written earlier
	Nothing bool   // the job was done already
}

// String returns the summary after an empty line, at most 80 columns wide.
func (s Summary) String() string {
	b := s.Books
	var out strings.Builder
	line := func(label, format string, args ...any) {
		wrap(&out, 24, fmt.Sprintf("  %-22s%s", label, fmt.Sprintf(format, args...)))
	}
	mode := "unordered"
	if s.Config.Ordered {
		mode = "ordered"
	}
	out.WriteByte('\n')
	wrap(&out, 2, fmt.Sprintf("%s: %s, %s, %s", s.Input, mode, strategy(s.Config.Retry), faults(s.Config)))
	out.WriteByte('\n')

	before := 0
	if s.Checkpoints != nil {
		before = s.Checkpoints.Before
		line("resumed from", "%s", s.Checkpoints.origin())
	}
	line("elements in", "%s", show.Count(b.Read))
	line("enriched", "%s", show.Count(b.Enriched))
	line("retried", "%s%s", show.Count(b.Retried), share(b.Retried, b.Read))
	line("timed out", "%s", show.Count(s.Lookups.Timeouts))
	line("given up", "%s", show.Count(b.GivenUp))
	if s.Interrupted && s.Checkpoints != nil {
		line("to be done", "%s", show.Count(b.Missing))
	} else if s.Interrupted {
		line("abandoned", "%s in flight when the time to drain was over", show.Count(b.Abandoned))
		line("not started", "%s read, but not begun", show.Count(s.NotTaken))
	}
	out.WriteByte('\n')
	s.writeCalls(line, before)
	if len(b.Losses) > 0 {
		out.WriteString("\ngiven up:\n")
		for _, l := range b.Losses {
			wrap(&out, 4, fmt.Sprintf("  airport %q: %s, %s (%s)", l.Airport, plural(l.Flights, "flight"), l.Why, places(l)))
		}
	}
	out.WriteByte('\n')
	wrap(&out, 0, s.conclusion())
	return out.String()
}

// writeCalls writes the lines about calls, latency and trouble. before is the number of
// flights written by earlier runs.
func (s Summary) writeCalls(line func(label, format string, args ...any), before int) {
	b := s.Books
	line("calls made", "%s, of them retries %s", show.Count(s.Lookups.Attempts), show.Count(s.Lookups.Retries()))
	line("  no row yet", "%s", show.Count(s.Lookups.RetriesOnResult))
	line("  errors", "%s (the client saw %s × region not served, %s × connection lost)", show.Count(s.Lookups.RetriesOnError),
		show.Count(s.Client.NotServing), show.Count(s.Client.ConnectionErrors))
	line("latency", "p50 %s   p99 %s   max %s   (first call to output)", quantiles(b.Latency)...)
	if b.Retried > 0 {
		if b.LatencyRetried.Max > 0 { // false if all were given up
			line("  of retried flights", "p50 %s   p99 %s   max %s", quantiles(b.LatencyRetried)...)
		}
		line("  retries of those", "p50 %d   p99 %d   max %d", b.Retries.P50, b.Retries.P99, b.Retries.Max)
	}
	line("throughput", "%s flights/s in %s", rate(b.Ended()-before, s.Elapsed), duration(s.Elapsed))
	if s.Config.Faults {
		line("trouble", "%s", trouble(s.Store))
	}
}

const summaryColumns = 80

// wrap writes a line, continued on indented lines if it is too long. It breaks at single
// spaces.
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
			break
		}
		out.WriteString(strings.TrimRight(line[:at], " ") + "\n")
		line = strings.Repeat(" ", indent) + strings.TrimLeft(line[at:], " ")
	}
	out.WriteString(line + "\n")
}

func (s Summary) conclusion() string {
	b := s.Books
	flights := plural(b.Read, "flight")
	enriched := show.Count(b.Enriched)
	givenUp := show.Count(b.GivenUp)
	order := inOrder(s.Config)
	switch {
	case s.Proof != nil:
		return "FAILED: " + s.Proof.Error()
	case s.Interrupted && s.Checkpoints != nil:
		return fmt.Sprintf("suspended in a last checkpoint: of %s, %s are in the output file and %s given up%s, none twice; "+
			"start again with the same flags to go on.", flights, enriched, givenUp, order)
	case s.Interrupted:
		return fmt.Sprintf("interrupted: of %s, %s came out enriched and %s given up%s; "+
			"%s abandoned, %s not started; none twice, none lost.",
			flights, enriched, givenUp, order, show.Count(b.Abandoned), show.Count(s.NotTaken))
	case s.Checkpoints != nil:
		return provenByFile(flights, order, enriched, givenUp)
	}
	return fmt.Sprintf("proven: %s came out exactly once%s: %s enriched, %s given up.", flights, order, enriched, givenUp)
}

func provenByFile(flights, order, enriched, givenUp string) string {
	return fmt.Sprintf("proven: %s are in the output file exactly once%s, or given up: %s enriched, %s given up.", flights, order, enriched, givenUp)
}

func inOrder(c Config) string {
	if c.Ordered {
		return ", in input order"
	}
	return ""
}

func faults(c Config) string {
	if c.Faults {
		return fmt.Sprintf("faults of seed %d", c.Seed)
	}
	return "no faults"
}

func (c Checkpoints) origin() string {
	switch {
	case c.Resumed == 0:
		return "the beginning: there was no checkpoint"
	case c.Nothing:
		return fmt.Sprintf("checkpoint %d, which has all %s: the job was done already", c.Resumed, plural(c.Before, "flight"))
	}
	return fmt.Sprintf("checkpoint %d, with %s done", c.Resumed, plural(c.Before, "flight"))
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

func trouble(s hstore.Stats) string {
	var parts []string
	for _, k := range hstore.Kinds {
		if s.Events[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d × %s", s.Events[k], k))
		}
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
	return show.Count(int(perSecond))
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
	return show.Count(n) + " " + word
}
