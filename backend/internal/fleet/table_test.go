package fleet_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend/internal/fleet"
)

// laterTable is a table with the entry of a process of a later version.
const laterTable = `{"members":{"b":{"share":3,"need":4,"beat":5,"written":6,"joined":2,"ticket":1,"longest":7,"stopped":true,` +
	`"weight":2.50,"zone":{"of":["north"]}}},"round":12,"rules":[1e3]}`

func read(t *testing.T, text string) (table fleet.Table) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &table))
	return table
}

func written(t *testing.T, table fleet.Table) string {
	t.Helper()
	text, err := json.Marshal(table)
	require.NoError(t, err)
	return string(text)
}

// Law W4: a process that knows less than others writes the table with all that they have
// added to it.
func TestTable_LaterVersion(t *testing.T) {
	table := read(t, laterTable)
	require.Equal(t, 3, table.Members["b"].Share)
	require.Equal(t, laterTable, written(t, table))

	p := newMember(&record{table: table, version: 6}, "a", time.Second)
	p.step(time.Second)
	const mine = `"a":{"share":0,"need":0,"beat":1,"written":7,"joined":7,"ticket":2,"longest":1000000000},`
	require.Equal(t, strings.Replace(laterTable, `"b":`, mine+`"b":`, 1), written(t, p.table))
	require.Equal(t, laterTable, written(t, p.Leave(p.table)))
}

func FuzzTable(f *testing.F) {
	f.Add([]byte(laterTable))
	f.Add([]byte(`{"members":{"a":{"share":1,"need":2,"beat":3,"written":4,"joined":4,"ticket":1,"longest":9000000000}}}`))
	f.Add([]byte(`{"MEMBERS":{"a":null},"members":{"a":{"Share":-1,"share":2,"x":"\ud800"}},"":null}`))
	f.Add([]byte(laterHealth))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var table, again fleet.Table
		if json.Unmarshal(text, &table) != nil {
			return
		}
		b, err := json.Marshal(table)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &again))
		require.Equal(t, table, again)

		at := fleet.Instant{Mono: time.Second, Wall: time.Second}
		next := fleet.New("new").Begin(at, at, 1, table, fleet.Local{Limit: 10, Need: 1, Longest: time.Second})
		for id, x := range table.Members {
			if id != "new" {
				require.Equal(t, x, next.Members[id])
			}
		}
	})
}

// laterHealth is the state of a service with members of a later version, and with a state
// of a later version.
const laterHealth = `{"members":{},"health":{"number":3,"by":"b","state":"down","why":"503","left":9000000000,"outage":5,"trouble":6,"zone":[1.50]},` +
	`"pause":{"number":2,"by":"b","left":8000000000,"why":"429","scope":"all"}}`

// Law W4: a process keeps what a later version has added to the state of the service,
// until it changes the state.
func TestTable_LaterVersionOfTheHealth(t *testing.T) {
	p := newMember(&record{table: read(t, laterHealth), version: 6}, "a", time.Second)
	p.step(0)
	text := written(t, p.table)
	require.Contains(t, text, `"trouble":6,"zone":[1.50]}`)
	require.Contains(t, text, `"why":"429","left":8000000000,"scope":"all"}`)

	p.Propose(p.instant(time.Second), fleet.Health{State: fleet.Held, Why: "order"}, true)
	p.step(time.Second)
	require.NotContains(t, written(t, p.table), "zone")
}

// In a state of a later version no call starts until a probe has succeeded.
func TestTable_LaterState(t *testing.T) {
	p := newMember(&record{table: read(t, strings.Replace(laterHealth, `"down"`, `"resting"`, 1)), version: 6}, "a", time.Second)
	p.step(0)
	h, news := p.Adopt(0)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, fleet.Down, h.State)
}

// Law W4: a process keeps a state that a later version has recorded, until it changes the
// health.
func TestMachine_LaterStateIsKept(t *testing.T) {
	r := &record{version: 1, table: read(t, `{"members":{"z":{"beat":1,"written":1}},"health":{"number":7,"by":"z","state":"draining","drainTo":3}}`)}
	m := newMember(r, "a", time.Second)
	now := time.Second
	m.step(now)
	require.Contains(t, written(t, r.table), `"state":"draining"`)
	require.Contains(t, written(t, r.table), `"drainTo":3`)
	h, news := m.Adopt(now)
	require.NotEqual(t, fleet.NoNews, news)
	require.Equal(t, fleet.Down, h.State)
	m.Propose(m.instant(now), fleet.Health{State: fleet.Held, Why: "hold"}, true)
	m.step(now + 200*ms)
	require.Contains(t, written(t, r.table), `"state":"held"`)
	require.NotContains(t, written(t, r.table), "drainTo")
}
