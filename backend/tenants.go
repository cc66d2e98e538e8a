package backend

import "time"

// tenant is what is known of one tenant. It is forgotten when it is at rest.
type tenant struct {
	rate   bucket
	until  time.Duration // closed until then; 0: not at all
	pause  time.Duration // how long it was closed last, without a time from the server
	prober *place        // whose call tries it; nil: none does
}

// tenants has those that are not at rest, and some that are. Guarded by Backend.mu.
type tenants struct {
	all   map[string]*tenant
	rate  bucket // a new one's
	sweep int    // as many may be there before those at rest are forgotten
}

const fewTenants = 1024

func newTenants(rate bucket) tenants {
	return tenants{all: make(map[string]*tenant), rate: rate, sweep: fewTenants}
}

// isIdle reports whether no tenant can be refused.
func (n *tenants) isIdle() bool { return len(n.all) == 0 && !n.rate.isSet() }

// find returns a tenant, and makes it if there is something to remember.
func (n *tenants) find(name string, t time.Duration, remember bool) *tenant {
	x := n.all[name]
	if x == nil && (remember || n.rate.isSet()) {
		if len(n.all) >= n.sweep {
			n.forget(t)
		}
		x = &tenant{rate: n.rate}
		x.rate.at = t
		n.all[name] = x
	}
	return x
}

// forget forgets the tenants that are at rest.
func (n *tenants) forget(t time.Duration) {
	for name, x := range n.all {
		x.rate.fill(t, 1)
		if x.prober == nil && (x.until == 0 || t >= x.until+time.Minute) && x.rate.level >= x.rate.burst {
			delete(n.all, name)
		}
	}
	n.sweep = max(fewTenants, 2*len(n.all))
}

// wait returns how long a call of the tenant must wait; 0: it may start.
func (x *tenant) wait(t time.Duration, cost float64) time.Duration {
	switch {
	case t < x.until:
		return x.until - t
	case x.prober != nil:
		return askAgain
	}
	x.rate.fill(t, 1)
	return x.rate.wait(cost)
}

// askAgain is when a call of a tenant is asked for again whose probe is under way.
const askAgain = 100 * time.Millisecond
