package backend

import "time"

// tenant is the state of a tenant. It is forgotten when it is at rest.
type tenant struct {
	name  string
	rate  bucket
	until time.Duration // no call starts before; 0 if the service has not asked for a delay
	asked time.Duration // when a call of it asked to start last
}

// tenants has the tenants that are not at rest, and some that are. Guarded by Backend.mu.
type tenants struct {
	all  map[string]*tenant
	list []*tenant // the tenants of all
	at   int       // index of the tenant that is checked next
	most int       // highest size of all since it was made
	rate bucket    // of a new tenant
}

const (
	fewTenants = 1024 // as many may be at rest
	rests      = time.Minute
)

func newTenants(rate bucket) tenants { return tenants{all: make(map[string]*tenant), rate: rate} }

// isIdle reports whether no tenant can be refused.
func (n *tenants) isIdle() bool { return len(n.all) == 0 && !n.rate.isSet() }

// find returns a tenant, and makes it if there is something to remember.
func (n *tenants) find(name string, t time.Duration, remember bool) *tenant {
	for range 2 { // faster than tenants are added, so that the checks reach all of them
		n.tidy(t)
	}
	x := n.all[name]
	if x == nil && (remember || n.rate.isSet()) {
		x = &tenant{name: name, rate: n.rate}
		x.rate.at = t
		n.all[name] = x
		n.list = append(n.list, x)
		n.most = max(n.most, len(n.list))
	}
	if x != nil {
		x.asked = t
	}
	return x
}

// tidy checks the next tenant of a long list, and forgets it if it is at rest.
func (n *tenants) tidy(t time.Duration) {
	last := len(n.list) - 1
	if last < fewTenants {
		return
	}
	if n.at++; n.at > last {
		n.at = 0
	}
	x := n.list[n.at]
	if t-x.asked < rests || t-x.until < rests {
		return
	}
	if x.rate.fill(t); x.rate.level < x.rate.burst {
		return
	}
	delete(n.all, x.name)
	n.list[n.at], n.list[last] = n.list[last], nil
	n.list = n.list[:last]
	if n.most > 4*max(last, fewTenants) { // a map does not shrink
		all := make(map[string]*tenant, last)
		for _, x := range n.list {
			all[x.name] = x
		}
		n.all, n.list, n.most = all, append([]*tenant(nil), n.list...), last
	}
}

// wait returns how long a call of the tenant must wait, or 0 if it may start.
func (x *tenant) wait(t time.Duration, cost float64) time.Duration {
	if t < x.until {
		return x.until - t
	}
	x.rate.fill(t)
	return x.rate.wait(cost)
}

// obey pauses the tenant for a delay that the service demands (law B6).
func (x *tenant) obey(t, demanded time.Duration) {
	x.until = max(x.until, t+demanded)
	x.rate.empty(x.until)
}

// askAgain is the shortest wait of an element that a pause has kept from its call.
const askAgain = 100 * time.Millisecond
