package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirflow/weir/bench"
)

type line struct {
	title string
	cells []cell // in the order of bench.Series
}

type cell struct {
	none               bool
	ordered, unordered bench.Comparison
}

// lines returns the measured workloads, and the titles of the others.
func (s section) lines() (lines []line, missing []string) {
	some := map[string]bool{}
	var others []bench.Work
	for _, w := range s.works {
		l := line{title: w.Title()}
		complete := true
		for _, row := range bench.Series {
			c := cell{none: !slices.ContainsFunc(w.Ordered.Rows, func(r bench.Row) bool { return r.Impl == row.Impl })}
			if !c.none {
				var one, other bool
				c.ordered, one = s.results.Compare(w.Ordered, row.Impl)
				c.unordered, other = s.results.Compare(w.Unordered, row.Impl)
				complete = complete && one && other
			}
			l.cells = append(l.cells, c)
		}
		if complete {
			lines = append(lines, l)
			some[w.Ordered.Workload] = true
		} else {
			others = append(others, w)
		}
	}
	for _, w := range others {
		name := w.Ordered.Workload
		if some[name] {
			name = w.Title()
		}
		if !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	return lines, missing
}

// table formats a section in markdown. A cell has both modes, ordered first.
func table(s section) string {
	lines, missing := s.lines()
	var b strings.Builder
	if len(lines) > 0 {
		b.WriteString("| ordered, unordered |")
		for _, row := range bench.Series {
			fmt.Fprintf(&b, " %s: time | CPU |", row.Title)
		}
		if s.peers {
			b.WriteString(" best peer |")
		}
		b.WriteString("\n| --- |" + strings.Repeat(" ---: | ---: |", len(bench.Series)))
		if s.peers {
			b.WriteString(" --- |")
		}
		b.WriteByte('\n')
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s |", l.title)
		peer := ""
		for _, c := range l.cells {
			if c.none {
				b.WriteString(" | |")
				continue
			}
			fmt.Fprintf(&b, " %s, %s |", ratio(c.ordered.Time), ratio(c.unordered.Time))
			fmt.Fprintf(&b, " %s, %s |", ratio(c.ordered.CPU), ratio(c.unordered.CPU))
			peer = bench.PeerTitle(c.ordered.Peer)
			if other := bench.PeerTitle(c.unordered.Peer); other != peer {
				peer += ", " + other
			}
		}
		if s.peers {
			fmt.Fprintf(&b, " %s |", peer)
		}
		b.WriteByte('\n')
	}
	if len(missing) > 0 {
		fmt.Fprintf(&b, "\nNot measured yet: %s.\n", strings.Join(missing, "; "))
	}
	return b.String()
}

func ratio(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
