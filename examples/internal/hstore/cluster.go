package hstore

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

const (
	servers = 3
	// Bounds of the time to an answer, without faults.
	minLatency = 2 * time.Millisecond
	maxLatency = 8 * time.Millisecond
)

// starts are the first row keys of the regions, which are assigned to the servers in
// turn.
var starts = [...]string{"", "C", "G", "M", "P", "S"}

// Cluster is a running store.
type Cluster struct {
	faults  Faults
	servers []*server
	meta    *server

	mu      sync.Mutex // guards the fields below
	regions []*region  // ascending by start
	rows    map[string]map[string]string
	asked   map[string]int
	loaded  map[string]time.Time // when requested late rows are loaded
	gets    uint64
	plan    *plan
	next    event
	stats   Stats
}

// region is guarded by Cluster.mu.
type region struct {
	Region        // Server is not set
	owner  int    // index of the server that serves the region from openAt on
	before string // address from the meta server until then
	openAt time.Time
}

func (r *region) isMoving() bool { return time.Now().Before(r.openAt) }

// Start starts a store. The zero value of faults injects none. The caller must close the
// store.
func Start(faults Faults) (*Cluster, error) {
	c := &Cluster{
		faults: faults,
		rows:   make(map[string]map[string]string),
		asked:  make(map[string]int),
		loaded: make(map[string]time.Time),
		plan:   newPlan(faults),
		stats:  Stats{Events: make(map[Kind]int)},
	}
	c.next = c.plan.next()
	for id := range servers {
		s, err := listen(&regionServer{cluster: c, id: id})
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.servers = append(c.servers, s)
	}
	for i, start := range starts {
		r := &region{Region: Region{Name: fmt.Sprintf("airports,%s,%d", start, i+1), Start: start}, owner: i % servers}
		if i+1 < len(starts) {
			r.End = starts[i+1]
		}
		c.regions = append(c.regions, r)
	}
	var err error
	c.meta, err = listen(&metaServer{cluster: c})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// MetaAddr returns the address of the meta server, all that clients need.
func (c *Cluster) MetaAddr() string { return c.meta.address() }

// Load writes a row: the values of its columns (family:qualifier). A row that the faults
// make late appears some time after its first Get.
func (c *Cluster) Load(key string, cells map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows[key] = cells
}

// Close stops the servers and waits for all goroutines of the cluster.
func (c *Cluster) Close() error {
	var errs []error
	for _, s := range c.servers {
		errs = append(errs, s.close())
	}
	if c.meta != nil {
		errs = append(errs, c.meta.close())
	}
	return errors.Join(errs...)
}

// Stats counts the faults of a cluster.
type Stats struct {
	Events map[Kind]int
	Last   Kind // of the plan's last event, or ""
}

// Stats returns the faults so far.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Events = maps.Clone(s.Events)
	return s
}

func (c *Cluster) regionOfLocked(row string) *region {
	for _, r := range c.regions {
		if r.Contains(row) {
			return r
		}
	}
	return nil // unreachable: the regions cover all keys
}

// locate returns a row's region, as the meta server knows it.
func (c *Cluster) locate(row string) Region {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.regionOfLocked(row)
	found := r.Region
	found.Server = c.servers[r.owner].address()
	if r.isMoving() {
		found.Server = r.before
	}
	return found
}

// begin counts a Get, injects due faults, and returns the time to its answer.
func (c *Cluster) begin(id int, row string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	c.asked[row]++
	latency := c.latency(row, c.asked[row]) + c.servers[id].slowness(c.faults)
	_, exists := c.rows[row]
	lag, late := c.faults.lag(row)
	if exists && late && c.asked[row] == 1 {
		c.loaded[row] = time.Now().Add(lag)
		c.stats.Events[Late]++
	}
	for c.faults.EventEvery > 0 && c.gets >= c.next.at {
		c.injectLocked(c.next)
		c.next = c.plan.next()
	}
	return latency
}

func (c *Cluster) get(id int, req GetRequest) GetResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.regionOfLocked(req.Row)
	if r.Name != req.Region || r.owner != id || r.isMoving() {
		return GetResponse{NotServing: true}
	}
	if time.Now().Before(c.loaded[req.Row]) {
		return GetResponse{}
	}
	return GetResponse{Cells: c.rows[req.Row]}
}

// latency returns the time to the answer of a row's n-th Get: evenly spread between the
// bounds, and eight times as long for one Get in a hundred.
func (c *Cluster) latency(row string, n int) time.Duration {
	h := hash(c.faults.Seed, row, n)
	d := minLatency + time.Duration(h%uint64(maxLatency-minLatency))
	if (h>>48)%100 == 0 {
		d *= 8
	}
	return d
}

func (c *Cluster) injectLocked(e event) {
	s := c.servers[e.pick%servers]
	switch e.kind {
	case Move:
		r := c.regions[e.pick%uint64(len(c.regions))]
		if !r.isMoving() {
			r.before = c.servers[r.owner].address()
		}
		r.owner = (r.owner + 1 + int(e.pick>>32%(servers-1))) % servers
		r.openAt = time.Now().Add(c.faults.Transition)
	case Drop:
		s.drop()
	case Slow:
		s.slow(c.faults.SlowFor)
	case Crash:
		s.crash(c.faults.DownFor)
	case Late: // not in the plan
	}
	c.stats.Last = e.kind
	c.stats.Events[e.kind]++
}
