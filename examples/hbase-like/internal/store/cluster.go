package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

// Row is a row of the table.
type Row struct {
	Key   string
	Cells []wire.Cell
}

// Config describes a cluster.
type Config struct {
	// Servers is the number of region servers, at least 1.
	Servers int
	// Splits are the row keys at which a new region starts, ascending. Regions are
	// assigned to the servers in turn.
	Splits []string
	// MinLatency and MaxLatency bound the time to an answer, without faults.
	MinLatency, MaxLatency time.Duration
	// Faults are injected. The zero value injects no faults.
	Faults Faults
}

// Cluster is a running store.
type Cluster struct {
	cfg     Config
	servers []*server
	meta    *listener
	tasks   tasks

	// due, with capacity 1, signals that the number of Gets has passed the next event.
	// Servers send, the goroutine that runs the plan receives.
	due chan struct{}

	mu      sync.Mutex // guards the fields below
	regions []*region  // ascending by start
	asked   map[string]int
	late    map[string]Row // rows to be loaded some time after their first Get
	rows    map[string]Row
	gets    uint64
	next    uint64 // number of Gets at which the plan continues; 0 without a plan
	events  []Event
	stats   Stats
	closed  bool
}

// region is guarded by Cluster.mu.
type region struct {
	wire.Region     // as returned by the meta server
	owner       int // index of the server that serves the region once open
	open        bool
	moves       int // distinguishes the end of the latest move from the end of an older one
}

// Start starts a cluster. The caller must close it.
func Start(cfg Config) (*Cluster, error) {
	if cfg.Servers < 1 {
		return nil, fmt.Errorf("store: %d servers", cfg.Servers)
	}
	if !slices.IsSorted(cfg.Splits) || slices.Contains(cfg.Splits, "") {
		return nil, fmt.Errorf("store: splits %q are not ascending", cfg.Splits)
	}
	if cfg.MinLatency < 0 || cfg.MaxLatency < cfg.MinLatency {
		return nil, fmt.Errorf("store: latency from %v to %v", cfg.MinLatency, cfg.MaxLatency)
	}
	c := &Cluster{
		cfg:   cfg,
		due:   make(chan struct{}, 1),
		asked: make(map[string]int),
		late:  make(map[string]Row),
		rows:  make(map[string]Row),
	}
	for id := range cfg.Servers {
		s, err := startServer(c, id)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.servers = append(c.servers, s)
	}
	starts := append([]string{""}, cfg.Splits...)
	for i, start := range starts {
		r := &region{owner: i % cfg.Servers, open: true}
		r.Name = fmt.Sprintf("airports,%s,%d", start, i+1)
		r.Start = start
		if i+1 < len(starts) {
			r.End = starts[i+1]
		}
		r.Server = c.servers[r.owner].address()
		c.regions = append(c.regions, r)
	}
	meta, err := listen("127.0.0.1:0", c.answerLocate)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.meta = meta
	if cfg.Faults.EventEvery > 0 {
		c.tasks.start(c.runPlan)
	}
	return c, nil
}

// MetaAddr returns the address of the meta server. Clients need only this address.
func (c *Cluster) MetaAddr() string { return c.meta.addr }

// Load writes rows. A row that the faults make late is written some time after its first
// Get, as if a job that lags behind filled the dimension table.
func (c *Cluster) Load(rows ...Row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range rows {
		if _, late := c.cfg.Faults.lag(row.Key); late && c.asked[row.Key] == 0 {
			c.late[row.Key] = row
			continue
		}
		c.rows[row.Key] = row
	}
}

// Close stops the servers, drops pending answers, and waits for all goroutines of the
// cluster. It may be called twice.
func (c *Cluster) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	close(c.due)
	c.mu.Unlock()
	var errs []error
	for _, s := range c.servers {
		errs = append(errs, s.stop())
	}
	if c.meta != nil {
		errs = append(errs, c.meta.close())
	}
	c.tasks.stop()
	for _, s := range c.servers {
		s.wait()
	}
	if c.meta != nil {
		c.meta.wait()
	}
	return errors.Join(errs...)
}

// regionOfLocked returns the region of a row key. The caller holds c.mu.
func (c *Cluster) regionOfLocked(row string) *region {
	i, found := slices.BinarySearchFunc(c.regions, row, func(r *region, row string) int {
		return strings.Compare(r.Start, row)
	})
	if !found {
		i-- // the last region that starts before row
	}
	return c.regions[i]
}

// answerLocate handles requests to the meta server.
func (c *Cluster) answerLocate(req wire.Request, reply func(wire.Response)) {
	if req.Op != wire.OpLocate {
		reply(wire.Response{Status: wire.StatusError, Message: "the meta server only locates regions"})
		return
	}
	c.mu.Lock()
	found := c.regionOfLocked(req.Row).Region
	c.stats.Locates++
	c.mu.Unlock()
	c.tasks.after(c.cfg.MinLatency, func() {
		reply(wire.Response{Status: wire.StatusLocation, Region: found})
	})
}

// answerGet handles requests to region server id. It counts the Get now, and reads the
// row and answers after the latency has passed.
func (c *Cluster) answerGet(id int, slow time.Duration, req wire.Request, reply func(wire.Response)) {
	if req.Op != wire.OpGet {
		reply(wire.Response{Status: wire.StatusError, Message: "region servers only get rows"})
		return
	}
	c.mu.Lock()
	c.gets++
	c.stats.Gets++
	c.asked[req.Row]++
	n := c.asked[req.Row]
	if row, ok := c.late[req.Row]; ok {
		delete(c.late, req.Row)
		c.stats.LateRows++
		lag, _ := c.cfg.Faults.lag(row.Key)
		c.tasks.after(lag, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.rows[row.Key] = row
		})
	}
	if c.next > 0 && c.gets >= c.next && !c.closed {
		select {
		case c.due <- struct{}{}:
		default: // a signal is already pending
		}
	}
	c.mu.Unlock()
	c.tasks.after(c.latency(req.Row, n)+slow, func() { reply(c.get(id, req)) })
}

func (c *Cluster) get(id int, req wire.Request) wire.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.regionOfLocked(req.Row)
	if r.Name != req.Region || r.owner != id || !r.open {
		c.stats.NotServing++
		return wire.Response{Status: wire.StatusNotServing}
	}
	row, ok := c.rows[req.Row]
	if !ok {
		c.stats.Empty++
	}
	return wire.Response{Status: wire.StatusResult, Cells: row.Cells}
}

// latency returns the time to the answer of the n-th Get of a row: evenly spread between
// the bounds, and eight times as long for one Get in a hundred.
func (c *Cluster) latency(row string, n int) time.Duration {
	h := hash(c.cfg.Faults.Seed, row, n)
	d := c.cfg.MinLatency
	if spread := c.cfg.MaxLatency - c.cfg.MinLatency; spread > 0 {
		d += time.Duration(h % uint64(spread))
	}
	if (h>>48)%100 == 0 {
		d *= 8
	}
	return d
}

// Stats counts the cluster's answers and faults.
type Stats struct {
	Gets       int // Gets that reached a server
	Empty      int // answered with an empty result
	NotServing int // answered "not serving"
	Locates    int
	LateRows   int // rows requested before they were loaded
	Events     map[Kind]int
}

// Stats returns what the cluster did so far.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Events = maps.Clone(s.Events)
	return s
}

// Events returns the faults so far, oldest first.
func (c *Cluster) Events() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// Regions returns the regions as the meta server returns them, for tests and tools.
func (c *Cluster) Regions() []wire.Region {
	c.mu.Lock()
	defer c.mu.Unlock()
	regions := make([]wire.Region, len(c.regions))
	for i, r := range c.regions {
		regions[i] = r.Region
	}
	return regions
}
