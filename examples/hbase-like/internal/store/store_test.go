package store_test

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/store"
	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

func row(key string) store.Row {
	return store.Row{Key: key, Cells: []wire.Cell{{Column: "info:name", Value: "name of " + key}}}
}

func start(t *testing.T, cfg store.Config) *store.Cluster {
	t.Helper()
	c, err := store.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

// peer is a hand-driven connection.
type peer struct {
	t  *testing.T
	nc net.Conn
	in *bufio.Reader
	id uint64
}

func dial(t *testing.T, addr string) *peer {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(20*time.Second)))
	return &peer{t: t, nc: nc, in: bufio.NewReader(nc)}
}

func (p *peer) send(req wire.Request) uint64 {
	p.t.Helper()
	p.id++
	req.ID = p.id
	_, err := p.nc.Write(wire.AppendRequest(nil, req))
	require.NoError(p.t, err)
	return p.id
}

func (p *peer) ask(req wire.Request) wire.Response {
	p.t.Helper()
	id := p.send(req)
	resp, err := wire.ReadResponse(p.in)
	require.NoError(p.t, err)
	require.Equal(p.t, id, resp.ID)
	return resp
}

func locate(t *testing.T, c *store.Cluster, row string) wire.Region {
	t.Helper()
	resp := dial(t, c.MetaAddr()).ask(wire.Request{Op: wire.OpLocate, Row: row})
	require.Equal(t, wire.StatusLocation, resp.Status)
	return resp.Region
}

func get(t *testing.T, region wire.Region, row string) wire.Response {
	t.Helper()
	return dial(t, region.Server).ask(wire.Request{Op: wire.OpGet, Region: region.Name, Row: row})
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]store.Config{
		"no servers":        {},
		"unordered splits":  {Servers: 1, Splits: []string{"P", "C"}},
		"empty split":       {Servers: 1, Splits: []string{""}},
		"negative latency":  {Servers: 1, MinLatency: -1},
		"latency backwards": {Servers: 1, MinLatency: 2, MaxLatency: 1},
	} {
		_, err := store.Start(cfg)
		assert.Error(t, err, name)
	}
}

func TestMetaLocatesEveryRow(t *testing.T) {
	c := start(t, store.Config{Servers: 2, Splits: []string{"C", "M"}})
	regions := c.Regions()
	require.Len(t, regions, 3)
	assert.Equal(t, regions[0].Server, regions[2].Server, "two servers for three regions")
	assert.NotEqual(t, regions[0].Server, regions[1].Server)
	for row, want := range map[string]int{"": 0, "ATL": 0, "BZZZ": 0, "C": 1, "DTW": 1, "M": 2, "ZZZ": 2} {
		assert.Equal(t, regions[want], locate(t, c, row), "row %q", row)
	}
	assert.Equal(t, 7, c.Stats().Locates)
}

func TestServersServeTheirRegionsOnly(t *testing.T) {
	c := start(t, store.Config{Servers: 2, Splits: []string{"M"}})
	c.Load(row("ATL"), row("SFO"))
	low, high := locate(t, c, "ATL"), locate(t, c, "SFO")

	got := get(t, low, "ATL")
	assert.Equal(t, row("ATL").Cells, got.Cells)
	missing := get(t, low, "AAA")
	assert.Equal(t, wire.StatusResult, missing.Status, "a missing row is an empty result, not an error")
	assert.Empty(t, missing.Cells)

	assert.Equal(t, wire.StatusNotServing, get(t, high, "ATL").Status, "row of another region")
	elsewhere := low
	elsewhere.Server = high.Server
	assert.Equal(t, wire.StatusNotServing, get(t, elsewhere, "ATL").Status, "region of another server")
	renamed := low
	renamed.Name = "airports,,0"
	assert.Equal(t, wire.StatusNotServing, get(t, renamed, "ATL").Status, "region that is no more")

	s := c.Stats()
	assert.Equal(t, []int{5, 1, 3}, []int{s.Gets, s.Empty, s.NotServing})
}

func TestServersRefuseWhatTheyDoNotDo(t *testing.T) {
	c := start(t, store.Config{Servers: 1})
	meta := dial(t, c.MetaAddr()).ask(wire.Request{Op: wire.OpGet, Row: "ATL"})
	assert.Equal(t, wire.StatusError, meta.Status)
	region := dial(t, c.Regions()[0].Server).ask(wire.Request{Op: wire.OpLocate, Row: "ATL"})
	assert.Equal(t, wire.StatusError, region.Status)
}

func TestStore_NonsenseEndsTheConnection(t *testing.T) {
	c := start(t, store.Config{Servers: 1})
	p := dial(t, c.Regions()[0].Server)
	_, err := p.nc.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, err = wire.ReadResponse(p.in)
	assert.Error(t, err)
	assert.Equal(t, wire.StatusResult, get(t, c.Regions()[0], "ATL").Status, "the server lives on")
}

func TestStore_ManyCallsShareAConnection(t *testing.T) {
	c := start(t, store.Config{Servers: 1, MinLatency: time.Millisecond, MaxLatency: 20 * time.Millisecond})
	const calls = 200
	region := c.Regions()[0]
	p := dial(t, region.Server)
	for i := range calls {
		key := fmt.Sprintf("ROW%03d", i)
		c.Load(row(key))
		p.send(wire.Request{Op: wire.OpGet, Region: region.Name, Row: key})
	}
	var order []uint64
	for range calls {
		resp, err := wire.ReadResponse(p.in)
		require.NoError(t, err)
		assert.Equal(t, row(fmt.Sprintf("ROW%03d", resp.ID-1)).Cells, resp.Cells)
		order = append(order, resp.ID)
	}
	assert.False(t, slices.IsSorted(order), "answers come as they are ready")
	slices.Sort(order)
	assert.Len(t, slices.Compact(order), calls)
}

func TestMovedRegionIsServedElsewhere(t *testing.T) {
	c := start(t, store.Config{Servers: 2, Splits: []string{"M"}, Faults: store.Faults{Transition: 20 * time.Millisecond}})
	c.Load(row("ATL"))
	before := locate(t, c, "ATL")
	require.NoError(t, c.MoveRegion(before.Name, 1))
	assert.Equal(t, wire.StatusNotServing, get(t, before, "ATL").Status)

	var after wire.Region
	require.Eventually(t, func() bool {
		after = locate(t, c, "ATL")
		return after.Server != before.Server
	}, time.Minute, time.Millisecond)
	assert.Equal(t, row("ATL").Cells, get(t, after, "ATL").Cells)
	assert.Equal(t, wire.StatusNotServing, get(t, before, "ATL").Status)

	assert.Error(t, c.MoveRegion("nowhere", 0))
	assert.Error(t, c.MoveRegion(before.Name, 2))
}

// While a region is moving, neither the old nor the new server serves it.
func TestRegionInTransition(t *testing.T) {
	c := start(t, store.Config{Servers: 2, Splits: []string{"M"}, Faults: store.Faults{Transition: time.Hour}})
	low, high := c.Regions()[0], c.Regions()[1]
	require.NoError(t, c.MoveRegion(low.Name, 1))
	assert.Equal(t, low, locate(t, c, "ATL"), "the meta server tells the old place")
	assert.Equal(t, wire.StatusNotServing, get(t, low, "ATL").Status)
	low.Server = high.Server
	assert.Equal(t, wire.StatusNotServing, get(t, low, "ATL").Status)
}

// After two moves in a row, the end of the first must not open the region.
func TestLastMoveWins(t *testing.T) {
	c := start(t, store.Config{Servers: 3, Faults: store.Faults{Transition: 20 * time.Millisecond}})
	name := c.Regions()[0].Name
	third := addressOf(t, c, 2)
	require.NoError(t, c.MoveRegion(name, 1))
	require.NoError(t, c.MoveRegion(name, 2))
	require.Eventually(t, func() bool { return locate(t, c, "ATL").Server == third }, time.Minute, time.Millisecond)
	assert.Equal(t, wire.StatusResult, get(t, locate(t, c, "ATL"), "ATL").Status)
}

// addressOf finds the address of a server by moving a region there and back.
func addressOf(t *testing.T, c *store.Cluster, server int) string {
	t.Helper()
	before := c.Regions()[0]
	require.NoError(t, c.MoveRegion(before.Name, server))
	require.Eventually(t, func() bool { return c.Regions()[0].Server != before.Server }, time.Minute, time.Millisecond)
	addr := c.Regions()[0].Server
	require.NoError(t, c.MoveRegion(before.Name, 0))
	require.Eventually(t, func() bool { return c.Regions()[0].Server == before.Server }, time.Minute, time.Millisecond)
	return addr
}

func TestDroppedConnections(t *testing.T) {
	c := start(t, store.Config{Servers: 1})
	region := c.Regions()[0]
	p := dial(t, region.Server)
	p.ask(wire.Request{Op: wire.OpGet, Region: region.Name, Row: "ATL"})
	require.NoError(t, c.DropConnections(0))
	_, err := wire.ReadResponse(p.in)
	assert.Error(t, err)
	assert.Equal(t, wire.StatusResult, get(t, region, "ATL").Status, "new connections are served")
	assert.Error(t, c.DropConnections(7))
}

func TestCrashedServerComesBackWithItsData(t *testing.T) {
	c := start(t, store.Config{Servers: 2, Splits: []string{"M"}})
	c.Load(row("ATL"))
	before := locate(t, c, "ATL")
	p := dial(t, before.Server)
	p.ask(wire.Request{Op: wire.OpGet, Region: before.Name, Row: "ATL"})

	require.NoError(t, c.Crash(0))
	require.NoError(t, c.Crash(0), "dead is dead")
	_, err := wire.ReadResponse(p.in)
	assert.Error(t, err, "connections break")
	_, err = net.Dial("tcp", before.Server)
	assert.Error(t, err, "and new ones are refused")
	assert.Equal(t, before.Server, locate(t, c, "ATL").Server, "the meta server has not noticed")

	require.NoError(t, c.Revive(0))
	require.NoError(t, c.Revive(0), "alive is alive")
	assert.Equal(t, row("ATL").Cells, get(t, locate(t, c, "ATL"), "ATL").Cells)
	assert.Equal(t, before, locate(t, c, "ATL"), "at its old address")
	assert.Error(t, c.Crash(-1))
	assert.Error(t, c.Revive(9))
}

// If another process has taken its address, the server starts on a new one, which the
// meta server returns.
func TestCrashedServerFindsAnotherAddress(t *testing.T) {
	c := start(t, store.Config{Servers: 1})
	c.Load(row("ATL"))
	before := c.Regions()[0].Server
	require.NoError(t, c.Crash(0))
	squatter, err := net.Listen("tcp", before)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, squatter.Close()) })
	require.NoError(t, c.Revive(0))
	after := locate(t, c, "ATL")
	assert.NotEqual(t, before, after.Server)
	assert.Equal(t, row("ATL").Cells, get(t, after, "ATL").Cells)
}

func TestLateRowComesAfterItWasAskedFor(t *testing.T) {
	c := start(t, store.Config{Servers: 1, Faults: store.Faults{LateShare: 1, MaxLag: 40 * time.Millisecond}})
	c.Load(row("ATL"))
	region := c.Regions()[0]
	first := get(t, region, "ATL")
	assert.Equal(t, wire.StatusResult, first.Status)
	assert.Empty(t, first.Cells)
	require.Eventually(t, func() bool { return len(get(t, region, "ATL").Cells) > 0 }, time.Minute, time.Millisecond)
	assert.Equal(t, 1, c.Stats().LateRows)
	assert.GreaterOrEqual(t, c.Stats().Empty, 1)
}

// A late row that was requested before Load is loaded at once.
func TestRowLoadedAfterItWasAskedFor(t *testing.T) {
	c := start(t, store.Config{Servers: 1, Faults: store.Faults{LateShare: 1, MaxLag: time.Hour}})
	region := c.Regions()[0]
	assert.Empty(t, get(t, region, "ATL").Cells)
	c.Load(row("ATL"))
	assert.NotEmpty(t, get(t, region, "ATL").Cells)
}

func TestSlowServerIsSlow(t *testing.T) {
	faults := store.Faults{Seed: 3, EventEvery: 1, SlowBy: 60 * time.Millisecond, SlowFor: time.Hour}
	c := start(t, store.Config{Servers: 1, Faults: faults})
	// Make enough Gets to reach a slow spell.
	for !slices.ContainsFunc(c.Events(), func(e store.Event) bool { return e.Kind == store.Slow }) {
		nudge(c)
	}
	// The events of the next Gets may drop their connections.
	require.Eventually(t, func() bool {
		begun := time.Now()
		if !nudge(c) {
			return false
		}
		assert.GreaterOrEqual(t, time.Since(begun), faults.SlowBy)
		return true
	}, time.Minute, time.Millisecond)
}

// nudge sends a Get that may fail, and reports whether it was answered.
func nudge(c *store.Cluster) (answered bool) {
	_ = c.Revive(0)
	nc, err := net.Dial("tcp", c.Regions()[0].Server)
	if err != nil {
		return false
	}
	defer func() { _ = nc.Close() }()
	_, _ = nc.Write(wire.AppendRequest(nil, wire.Request{Op: wire.OpGet, Region: c.Regions()[0].Name, Row: "ATL"}))
	_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err = wire.ReadResponse(bufio.NewReader(nc))
	return err == nil
}

// The same seed injects the same faults in the same order.
func TestTroubleIsReproducible(t *testing.T) {
	const gets = 60
	run := func(seed uint64) []store.Event {
		faults := store.DefaultFaults(seed)
		faults.EventEvery = 5
		faults.DownFor, faults.SlowFor, faults.SlowBy = 0, 0, 0
		c := start(t, store.Config{Servers: 3, Splits: []string{"H", "P"}, Faults: faults})
		for c.Stats().Gets < gets {
			nudge(c)
		}
		var due int
		for e := range faults.Plan() {
			if e.At > gets {
				break
			}
			due++
		}
		require.Eventually(t, func() bool { return len(c.Events()) >= due }, time.Minute, time.Millisecond)
		return c.Events()[:due]
	}
	first := run(7)
	assert.NotEmpty(t, first)
	assert.Equal(t, first, run(7))
	assert.NotEqual(t, first, run(8))
}

func TestPlan(t *testing.T) {
	take := func(f store.Faults, n int) []store.Event {
		var events []store.Event
		for e := range f.Plan() {
			if len(events) == n {
				break
			}
			events = append(events, e)
		}
		return events
	}
	f := store.DefaultFaults(1)
	events := take(f, 400)
	assert.Equal(t, events, take(f, 400))
	assert.NotEqual(t, events, take(store.DefaultFaults(2), 400))

	seen := make(map[store.Kind]int)
	var last uint64
	for _, e := range events {
		assert.Greater(t, e.At, last)
		last = e.At
		seen[e.Kind]++
	}
	assert.Equal(t, map[store.Kind]int{store.Move: 150, store.Drop: 100, store.Slow: 100, store.Crash: 50}, seen)
	assert.InDelta(t, f.EventEvery, float64(last)/400, float64(f.EventEvery)/10)

	f.EventEvery = 1
	for _, e := range take(f, 100) {
		assert.Positive(t, e.At)
	}
}

// Close ends a busy cluster, and goleak finds no leak.
func TestCloseWhileBusy(t *testing.T) {
	faults := store.DefaultFaults(1)
	faults.EventEvery = 3
	c, err := store.Start(store.Config{Servers: 2, MinLatency: time.Hour, MaxLatency: time.Hour, Faults: faults})
	require.NoError(t, err)
	region := c.Regions()[0]
	p := dial(t, region.Server)
	c.Load(row("ATL"))
	for range 100 {
		_, _ = p.nc.Write(wire.AppendRequest(nil, wire.Request{Op: wire.OpGet, Region: region.Name, Row: "ATL"}))
	}
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "closing twice does nothing")
	require.NoError(t, c.Revive(0), "a closed cluster stays closed")
	_, err = net.Dial("tcp", region.Server)
	assert.Error(t, err)
}

func TestKindsHaveNames(t *testing.T) {
	for _, k := range []store.Kind{store.Move, store.Drop, store.Slow, store.Crash} {
		assert.NotContains(t, k.String(), "Kind(")
	}
	assert.Equal(t, "Kind(9)", store.Kind(9).String())
}
