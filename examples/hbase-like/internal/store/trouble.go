package store

import (
	"fmt"
	"iter"
)

// runPlan runs the events of the plan in order, each once the number of Gets reaches it.
func (c *Cluster) runPlan() {
	next, stop := iter.Pull(c.cfg.Faults.Plan())
	defer stop()
	for {
		e, _ := next()
		for {
			c.mu.Lock()
			c.next = e.At
			reached := c.gets >= e.At
			c.mu.Unlock()
			if reached {
				break
			}
			if _, open := <-c.due; !open {
				return
			}
		}
		c.happen(e)
	}
}

func (c *Cluster) happen(e Event) {
	f := c.cfg.Faults
	id := int(e.Pick % uint64(len(c.servers)))
	switch e.Kind {
	case Move:
		c.mu.Lock()
		r := c.regions[e.Pick%uint64(len(c.regions))]
		others := uint64(len(c.servers) - 1)
		if others > 0 {
			id = (r.owner + 1 + int(e.Pick>>32%others)) % len(c.servers)
		}
		c.mu.Unlock()
		_ = c.MoveRegion(r.Name, id) // the name and the index are valid
	case Drop:
		_ = c.DropConnections(id)
	case Slow:
		c.servers[id].slow(f.SlowBy, f.SlowFor)
	case Crash:
		_ = c.Crash(id)
		// If Revive finds no address, the server stays down, and the run reports why it
		// failed.
		c.tasks.after(f.DownFor, func() { _ = c.Revive(id) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	if c.stats.Events == nil {
		c.stats.Events = make(map[Kind]int)
	}
	c.stats.Events[e.Kind]++
}

// MoveRegion moves a region to a server. During Faults.Transition no server serves it,
// and the meta server still returns the old server.
func (c *Cluster) MoveRegion(name string, to int) error {
	if err := c.checkServer(to); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.regions {
		if r.Name != name {
			continue
		}
		r.owner, r.open = to, false
		r.moves++
		move := r.moves
		c.tasks.after(c.cfg.Faults.Transition, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if r.moves == move {
				r.open, r.Server = true, c.servers[to].address()
			}
		})
		return nil
	}
	return fmt.Errorf("store: no region %q", name)
}

// DropConnections breaks the connections of a server, which keeps serving.
func (c *Cluster) DropConnections(server int) error {
	if err := c.checkServer(server); err != nil {
		return err
	}
	c.servers[server].drop()
	return nil
}

// Crash stops a server: its connections break and new ones are refused. The meta server
// still returns its address.
func (c *Cluster) Crash(server int) error {
	if err := c.checkServer(server); err != nil {
		return err
	}
	return c.servers[server].stop()
}

// Revive restarts a crashed server with the same data. It does nothing if the server is
// running.
func (c *Cluster) Revive(server int) error {
	if err := c.checkServer(server); err != nil {
		return err
	}
	s := c.servers[server]
	c.mu.Lock()
	defer c.mu.Unlock() // so that no server starts in a closed cluster
	if c.closed {
		return nil
	}
	if err := s.revive(); err != nil {
		return err
	}
	for _, r := range c.regions {
		if r.owner == server && r.open {
			r.Server = s.address()
		}
	}
	return nil
}

func (c *Cluster) checkServer(id int) error {
	if id < 0 || id >= len(c.servers) {
		return fmt.Errorf("store: no server %d, there are %d", id, len(c.servers))
	}
	return nil
}
