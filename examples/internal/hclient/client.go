package hclient

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"slices"
	"sync"

	"github.com/weirflow/weir/examples/internal/hstore"
)

// Result is a row: the values of its columns (family:qualifier).
type Result map[string]string

// Empty reports whether the row is missing.
func (r Result) Empty() bool { return len(r) == 0 }

// Stats counts a client's failures.
type Stats struct {
	NotServing       int
	ConnectionErrors int
}

// Client is a client of one store. It is safe for concurrent use.
type Client struct {
	meta string
	gets sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	conns   map[string]*rpc.Client
	regions []hstore.Region
	stats   Stats
}

// New returns a client of the store whose meta server is at metaAddr. It connects on
// demand.
func New(metaAddr string) *Client {
	return &Client{meta: metaAddr, conns: make(map[string]*rpc.Client)}
}

// Get requests a row and returns at once. It calls done exactly once, on another
// goroutine: with the row, an empty result, or an error. If ctx ends first, done gets its
// cause and the answer is ignored.
func (c *Client) Get(ctx context.Context, row string, done func(Result, error)) {
	c.gets.Go(func() {
		r, err := c.get(ctx, row)
		c.count(err)
		done(r, err)
	})
}

// Close waits for the Gets, and closes the connections.
func (c *Client) Close() error {
	c.gets.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // it may be broken
	}
	return nil
}

// Stats returns the counts so far.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Client) get(ctx context.Context, row string) (Result, error) {
	region, err := c.locate(ctx, row)
	if err != nil {
		return nil, err
	}
	var resp hstore.GetResponse
	err = c.call(ctx, region.Server, hstore.MethodGet, hstore.GetRequest{Region: region.Name, Row: row}, &resp)
	if err != nil {
		return nil, err
	}
	if resp.NotServing {
		c.forget(func(r hstore.Region) bool { return r == region }) // but not its successor
		return nil, &NotServingRegionError{Server: region.Server, Region: region.Name, Row: row}
	}
	return resp.Cells, nil
}

// locate returns a row's region, from the cache if possible.
func (c *Client) locate(ctx context.Context, row string) (hstore.Region, error) {
	c.mu.Lock()
	i := slices.IndexFunc(c.regions, func(r hstore.Region) bool { return r.Contains(row) })
	if i >= 0 {
		defer c.mu.Unlock()
		return c.regions[i], nil
	}
	c.mu.Unlock()
	var region hstore.Region
	err := c.call(ctx, c.meta, hstore.MethodLocate, row, &region)
	if err != nil {
		return hstore.Region{}, err
	}
	c.forget(func(r hstore.Region) bool { return r.Name == region.Name })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regions = append(c.regions, region)
	return region, nil
}

func (c *Client) call(ctx context.Context, server, method string, req, resp any) error {
	conn, err := c.connect(ctx, server)
	if err == nil {
		call := conn.Go(method, req, resp, make(chan *rpc.Call, 1))
		select {
		case <-call.Done:
			err = call.Error
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	c.lost(server, conn)
	return &ConnectionError{Server: server, Err: err}
}

// connect returns the connection to a server, dialing if needed.
func (c *Client) connect(ctx context.Context, server string) (*rpc.Client, error) {
	c.mu.Lock()
	conn := c.conns[server]
	c.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	dialed, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[server] == nil {
		c.conns[server] = rpc.NewClient(dialed)
	} else { // another Get was faster
		_ = dialed.Close()
	}
	return c.conns[server], nil
}

// lost removes a broken connection, and the cached regions of its server, which may be
// outdated.
func (c *Client) lost(server string, conn *rpc.Client) {
	c.forget(func(r hstore.Region) bool { return r.Server == server })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[server] == conn && conn != nil {
		delete(c.conns, server)
		_ = conn.Close()
	}
}

func (c *Client) forget(outdated func(hstore.Region) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regions = slices.DeleteFunc(c.regions, outdated)
}

func (c *Client) count(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := errors.AsType[*NotServingRegionError](err); ok {
		c.stats.NotServing++
	}
	if _, ok := errors.AsType[*ConnectionError](err); ok {
		c.stats.ConnectionErrors++
	}
}
