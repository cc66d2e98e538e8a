package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// showTimeline prints a line for each call, and its error unless the previous call had
// the same.
func (a *app) showTimeline(e *store.Entry) error {
	calls := e.Meta.Timeline
	if len(calls) == 0 {
		return nil
	}
	rows := make([][]string, len(calls))
	for i, s := range calls {
		then := e.Cause.String()
		switch next := i + 1; {
		case s.Retried:
			then = "again in " + brief(s.Wait)
		case next < len(calls):
			then = "next visit in " + age(max(0, calls[next].Begun.Sub(s.Begun.Add(s.Took))))
		}
		rows[i] = []string{
			s.Begun.UTC().Format("01-02 15:04:05.000Z"), fmt.Sprintf("%d.%d", s.Visit, s.Attempt), brief(s.Took),
			escaped(s.Backend), escaped(s.Reason), then,
		}
	}
	table := pages{app: a, columns: []column{
		{name: "BEGUN"}, {name: "CALL"}, {name: "TOOK", right: true}, {name: "BACKEND", least: 4}, {name: "REASON", least: 6}, {name: "THEN", least: 12},
	}}
	lines := strings.SplitAfter(table.text(rows), "\n")
	b := strings.Builder{}
	b.WriteString("\n" + lines[0])
	for i, s := range calls {
		if i > 0 && calls[i-1].Visit == s.Visit && calls[i-1].Attempt+1 < s.Attempt {
			b.WriteString("…\n")
		}
		b.WriteString(lines[i+1])
		if s.Error != "" && (i == 0 || s.Error != calls[i-1].Error) {
			b.WriteString("  " + ellipsis(escaped(s.Error), a.width()-2) + "\n")
		}
	}
	return a.print(b.String())
}

// brief formats a duration with three digits.
func brief(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
