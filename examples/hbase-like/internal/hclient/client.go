package hclient

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

const (
	dialTimeout = 2 * time.Second
	// After a failed dial, Gets to that server fail at once for this time instead of
	// queueing behind hopeless dials.
	failedFor = 25 * time.Millisecond
	// A server that owes answers and sends no data for this time counts as dead.
	silence = 5 * time.Second
)

// Result is a row, or empty if the store has no such row.
type Result struct {
	Row   string
	cells []wire.Cell
}

// Empty reports whether the store has no such row.
func (r Result) Empty() bool { return len(r.cells) == 0 }

// Value returns the value of a column (family:qualifier), or "" if the row lacks it.
func (r Result) Value(column string) string {
	for _, c := range r.cells {
		if c.Column == column {
			return c.Value
		}
	}
	return ""
}

// Stats counts a client's requests and failures.
type Stats struct {
	Gets             int // sent to a region server
	Locates          int // sent to the meta server
	Dials            int
	NotServing       int // answers "not serving"
	ConnectionErrors int // Gets that ended with a ConnectionError
}

// Client is a client of one store. It is safe for concurrent use.
type Client struct {
	meta    string
	silence time.Duration   // the constant, except in tests
	ctx     context.Context // ended by Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup // the goroutines of the connections

	mu       sync.Mutex // guards the fields below; not held while callbacks run
	closed   bool
	conns    map[string]*conn
	failed   map[string]failure
	regions  []wire.Region // region cache, ascending, without overlaps
	locating bool          // a request to the meta server is in progress
	waiting  []*call       // Gets waiting for that request; then they check the cache again
	stats    Stats
}

type failure struct {
	until time.Time
	err   error
}

// New returns a client of the store whose meta server is at metaAddr. It connects on
// demand.
func New(metaAddr string) *Client {
	ctx, cancel := context.WithCancel(context.Background())
	return &Client{
		meta:    metaAddr,
		silence: silence,
		ctx:     ctx,
		cancel:  cancel,
		conns:   make(map[string]*conn),
		failed:  make(map[string]failure),
	}
}

// Get requests a row and returns at once. It calls done exactly once: with the row, an
// empty result, or an error. If ctx ends first, done receives its cause and the answer is
// ignored.
func (c *Client) Get(ctx context.Context, row string, done func(Result, error)) {
	g := &call{row: row, done: done}
	if !g.watch(ctx) {
		done(Result{}, context.Cause(ctx))
		return
	}
	c.route(g)
}

// Close breaks the connections, ends pending Gets with ErrClosed, and waits for the
// client's goroutines. It may be called twice.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conns := make([]*conn, 0, len(c.conns))
	for _, n := range c.conns {
		conns = append(conns, n)
	}
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()

	c.cancel()
	for _, n := range conns {
		n.fail(ErrClosed)
	}
	for _, g := range waiting {
		g.end(Result{}, ErrClosed)
	}
	c.wg.Wait()
	return nil
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// route sends g to the server of its region. If the region is unknown it locates it
// first.
func (c *Client) route(g *call) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		g.end(Result{}, ErrClosed)
		return
	}
	region, known := c.cachedLocked(g.row)
	if !known {
		c.waiting = append(c.waiting, g)
		first := !c.locating
		c.locating = true
		c.mu.Unlock()
		if first {
			c.locate(g.row)
		}
		return
	}
	n, err := c.connLocked(region.Server)
	if err != nil {
		c.stats.ConnectionErrors++
		c.mu.Unlock()
		g.end(Result{}, err)
		return
	}
	c.stats.Gets++
	c.mu.Unlock()

	id := n.send(wire.Request{Op: wire.OpGet, Region: region.Name, Row: g.row},
		func(resp wire.Response, err error) { c.answered(g, region, resp, err) })
	g.sent(n, id)
}

// answered ends g with the answer of the region's server.
func (c *Client) answered(g *call, region wire.Region, resp wire.Response, err error) {
	switch {
	case err != nil:
		c.mu.Lock()
		if !c.closed {
			c.stats.ConnectionErrors++
		}
		c.mu.Unlock()
		g.end(Result{}, err)
	case resp.Status == wire.StatusResult:
		g.end(Result{Row: g.row, cells: resp.Cells}, nil)
	case resp.Status == wire.StatusNotServing:
		c.mu.Lock()
		c.stats.NotServing++
		// Only if the cache still has this region. Another Get may have found the new one
		// meanwhile.
		c.regions = slices.DeleteFunc(c.regions, func(r wire.Region) bool { return r == region })
		c.mu.Unlock()
		g.end(Result{}, &NotServingRegionError{Server: region.Server, Region: region.Name, Row: g.row})
	default:
		g.end(Result{}, &RemoteError{Server: region.Server, Message: resp.Message})
	}
}

// locate asks the meta server for the region of row, then routes all waiting Gets. Only
// one request is in progress at a time, because most waiting Gets need the same region,
// and after a restart a thousand Gets would ask at once.
func (c *Client) locate(row string) {
	c.mu.Lock()
	n, err := c.connLocked(c.meta)
	if err == nil {
		c.stats.Locates++
	}
	c.mu.Unlock()
	if err != nil {
		c.located(row, wire.Response{}, err)
		return
	}
	n.send(wire.Request{Op: wire.OpLocate, Row: row},
		func(resp wire.Response, err error) { c.located(row, resp, err) })
}

func (c *Client) located(row string, resp wire.Response, err error) {
	if err == nil {
		switch {
		case resp.Status != wire.StatusLocation:
			err = &RemoteError{Server: c.meta, Message: resp.Message}
		case !resp.Region.Contains(row):
			err = &RemoteError{Server: c.meta, Message: "located the wrong region for row " + row}
		}
	}
	c.mu.Lock()
	waiting := c.waiting
	c.waiting, c.locating = nil, false
	if err == nil {
		c.rememberLocked(resp.Region)
	} else if !c.closed {
		c.stats.ConnectionErrors += len(waiting)
	}
	c.mu.Unlock()
	for _, g := range waiting {
		if err != nil {
			g.end(Result{}, err)
		} else if !g.hasEnded() {
			c.route(g)
		}
	}
}

// cachedLocked looks row up in the region cache.
func (c *Client) cachedLocked(row string) (wire.Region, bool) {
	for _, r := range c.regions { // only a few
		if r.Contains(row) {
			return r, true
		}
	}
	return wire.Region{}, false
}

// rememberLocked adds a region to the cache and removes all regions that overlap it.
func (c *Client) rememberLocked(region wire.Region) {
	c.regions = slices.DeleteFunc(c.regions, func(r wire.Region) bool {
		return r.Contains(region.Start) || region.Contains(r.Start)
	})
	c.regions = append(c.regions, region)
	slices.SortFunc(c.regions, func(a, b wire.Region) int { return strings.Compare(a.Start, b.Start) })
}

func (c *Client) forgetServerLocked(server string) {
	c.regions = slices.DeleteFunc(c.regions, func(r wire.Region) bool { return r.Server == server })
}

// connLocked returns the connection to a server. It creates the connection if necessary.
func (c *Client) connLocked(server string) (*conn, error) {
	if c.closed {
		return nil, ErrClosed
	}
	if n, ok := c.conns[server]; ok {
		return n, nil
	}
	if f, ok := c.failed[server]; ok {
		if time.Now().Before(f.until) {
			return nil, f.err
		}
		delete(c.failed, server)
	}
	c.stats.Dials++
	n := newConn(c, server)
	c.conns[server] = n
	c.wg.Go(n.run)
	return n, nil
}

// lost removes a broken connection. The cached regions of its server may be outdated as
// well.
func (c *Client) lost(n *conn, err error, dialed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[n.server] == n {
		delete(c.conns, n.server)
	}
	c.forgetServerLocked(n.server)
	if !dialed && !c.closed {
		c.failed[n.server] = failure{until: time.Now().Add(failedFor), err: err}
	}
}
