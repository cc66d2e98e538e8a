package flink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weirflow/weir/bench"
)

// Config selects the Java command and the amount of work.
type Config struct {
	Java  string // command, split at spaces; the class path comes from CLASSPATH
	Short bool   // few elements, as a check
}

// Group is one work in one mode. Its rows are comparable.
type Group struct {
	bench.Group
	short   bool
	work    work
	servers []*server
}

// flinkRows are the rows that run in Java. Only the job counts as a peer: users run jobs.
var flinkRows = []struct {
	impl, driver string
	kind         bench.Kind
	of           func(w work) bool
}{
	{"flink-job", "job", bench.Peer, func(work) bool { return true }},
	{"flink-operator", "op", bench.Reference, func(w work) bool { return w.fn != park }},
	{"flink-unchained", "unchained", bench.Reference, func(w work) bool { return w.fn == inline && !w.bare }},
	{"java-backend", "floor", bench.Floor, hasBackendRow},
}

// hasBackendRow reports whether the calls, not the retries, decide the result, so that
// the backend's limit is of interest.
func hasBackendRow(w work) bool { return w.fn == callback && (!w.fails || w.calls > 0) }

// roomyGC is the GOGC of rows that show the cost of garbage collection in weir. The JVM
// hardly has to collect its first heap in a run.
const roomyGC = 800

// Groups returns a group for each work, with the rows of Flink and of weir.
func Groups(c Config) []*Group {
	var all []*Group
	for _, w := range works(c.Short) {
		g := &Group{Group: w.group(), short: c.Short, work: w}
		for _, row := range flinkRows {
			if row.of(w) {
				s := &server{java: c.Java}
				g.servers = append(g.servers, s)
				g.Rows = append(g.Rows, bench.Row{Impl: row.impl, Kind: row.kind, Run: s.row(w, row.driver)})
			}
		}
		g.Rows = append(g.Rows, weirRows(w)...)
		g.Aims = aims(w)
		all = append(all, g)
	}
	return all
}

// aims returns the project's aims: throughput relative to Flink's job.
func aims(w work) []bench.Aim {
	if w.fn == park {
		return []bench.Aim{{Impl: "weir", Against: "flink-job", Max: 0.3}}
	}
	if w.fn == inline {
		if w.bare {
			return nil
		}
		return []bench.Aim{
			{Impl: "weir-results", Against: "flink-job", Max: 1 / 0.9},
			{Impl: "weir-chained", Against: "flink-job", Max: 1 / 1.2},
		}
	}
	if w.fn == cache {
		return []bench.Aim{{Impl: "weir-results", Against: "flink-job", Max: 1}}
	}
	return []bench.Aim{
		{Impl: "weir-results", Against: "flink-job", Max: 1 / 1.2},
		{Impl: "weir", Against: "flink-job", Max: 1},
	}
}

// Published returns the works in the README and the chart.
func Published() []bench.Work {
	var groups []bench.Group
	for _, g := range Groups(Config{}) {
		if g.work.fn != park {
			groups = append(groups, g.Group)
		}
	}
	return bench.Works(groups)
}

// Measure runs the rows in turn for the given rounds, after warm-up rounds that do not
// count. It calls progress after each run.
func (g *Group) Measure(rounds int, progress func(bench.Row, bench.Sample)) (report bench.Report, err error) {
	defer func() {
		for _, s := range g.servers {
			err = errors.Join(err, s.close())
		}
	}()
	for _, s := range g.servers {
		if err := s.start(); err != nil {
			return bench.Report{}, err
		}
	}
	warm := 3
	if g.work.fn == park {
		warm, rounds = 0, min(rounds, 2)
	} else if err := g.warmUp(); err != nil {
		return bench.Report{}, err
	}
	if g.short {
		warm = 0
	}
	if _, err := bench.Measure(g.Group, warm, bench.RunRow); err != nil {
		return bench.Report{}, err
	}
	results, err := bench.Measure(g.Group, rounds, func(group bench.Group, r bench.Row) (bench.Sample, error) {
		s, err := bench.RunRow(group, r)
		if err == nil {
			progress(r, s)
		}
		return s, err
	})
	return bench.Report{Group: g.Group, Results: results}, err
}

// warmUp runs each Java process twice for its compiler.
func (g *Group) warmUp() error {
	w, n := g.work.busy(g.short)
	for range 2 {
		for _, s := range g.servers {
			if _, err := s.run(w.line(s.driver, n)); err != nil {
				return fmt.Errorf("%s %s: warming up: %w", g.Name(), s.driver, err)
			}
		}
	}
	return nil
}

// Describe returns the work as the Java side reads it.
func (g *Group) Describe() string {
	return fmt.Sprintf("- %s: `%s`\n", g.Name(), strings.TrimPrefix(g.work.line("", g.Elems), "driver= "))
}
