package metered

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Run runs all clients in all scenarios concurrently, then the kills, and writes a table
// of 80 columns, in about a minute and a half. If isShort, it runs the first scenario
// with fewer rows, and kills each client once.
func Run(ctx context.Context, w io.Writer, isShort bool) error {
	all := scenarios
	rows, kills := 1000, 4
	if isShort {
		calm := scenarios[0]
		calm.rows = 400
		all = []scenario{calm}
		rows = 200
		kills = 1
	}
	t := newTable(all)
	var running sync.WaitGroup
	for i := range all {
		for j, c := range clients {
			running.Go(func() { t.results[i][j], t.errs[i][j] = all[i].run(ctx, c) })
		}
	}
	running.Wait()
	t.measureKills(ctx, rows, kills) // not concurrently: the processes need the machine
	err := t.err()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, t.String())
	return err
}

type table struct {
	scenarios []scenario
	results   [][]result // by scenario and client
	errs      [][]error
	rows      int
	kills     [2][]killResult // without and with keys, by client
	killErrs  []error
}

func newTable(all []scenario) *table {
	t := &table{scenarios: all}
	for range all {
		t.results = append(t.results, make([]result, len(clients)))
		t.errs = append(t.errs, make([]error, len(clients)))
	}
	return t
}

func (t *table) measureKills(ctx context.Context, rows, kills int) {
	t.rows = rows
	for i, hasKeys := range []bool{false, true} {
		for _, c := range clients {
			r, err := runKills(ctx, c.name, rows, kills, hasKeys)
			t.kills[i] = append(t.kills[i], r)
			t.killErrs = append(t.killErrs, err)
		}
	}
}

func (t *table) err() error {
	for _, errs := range append(t.errs, t.killErrs) {
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *table) String() string {
	var b strings.Builder
	write := func(name string, values []string, aim string) {
		fmt.Fprintf(&b, "%-25s", name)
		for _, v := range values {
			fmt.Fprintf(&b, "%11s", v)
		}
		fmt.Fprintf(&b, " %s\n", aim)
	}
	var names []string
	for _, c := range clients {
		names = append(names, c.name)
	}
	write("calls at "+strconv.Itoa(limit)+" a second", names, "aim")
	for i := range t.scenarios {
		s := &t.scenarios[i]
		fmt.Fprintf(&b, "%s\n", s.name)
		for _, column := range s.columns {
			var values []string
			for j := range t.results[i] {
				values = append(values, column.of(s, &t.results[i][j]))
			}
			write("  "+column.name, values, column.aim)
		}
	}
	for i, keys := range []string{"without keys", "with keys"} {
		if t.kills[i] == nil {
			continue
		}
		results := t.kills[i]
		fmt.Fprintf(&b, "%d kills, %d rows, %s\n", results[0].kills, t.rows, keys)
		number := func(of func(r *killResult) int) (values []string) {
			for j := range results {
				values = append(values, strconv.Itoa(of(&results[j])))
			}
			return values
		}
		aim := fmt.Sprintf("<= %d", results[0].kills*killCalls)
		if keys == "with keys" {
			aim = "0"
		}
		write("  paid twice", number(func(r *killResult) int { return r.paidTwice }), aim)
		write("  rows lost or doubled", number(func(r *killResult) int { return r.lost + r.doubled }), "0")
		write("  rows out of order", number(func(r *killResult) int { return r.outOfOrder }), "0")
	}
	return b.String()
}
