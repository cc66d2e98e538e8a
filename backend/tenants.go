package backend

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/gate"
)

// tenant is a tenant's state. It is forgotten at rest.
type tenant struct {
	name string
	health
	rate  bucket
	asked time.Duration // when its call last asked to start
}

// tenants has the tenants that are not at rest, and some others. Guarded by Backend.mu.
type tenants struct {
	all     map[string]*tenant
	limited map[string]*tenant // tenants that are not Up or were paused
	list    []*tenant          // the tenants in all
	at      int                // index of the tenant to check next
	most    int                // largest size of all since the map was made
	rate    bucket             // of a new tenant
	keeps   bool               // remembers every tenant, since its calls are judged
}

const (
	fewTenants = 1024 // as many may be at rest
	rests      = time.Minute
	// Time after which a tenant that is not up and makes no calls is up again.
	forgetsDown = 10 * time.Minute
)

func newTenants(rate bucket, keeps bool) tenants {
	return tenants{all: make(map[string]*tenant), limited: make(map[string]*tenant), rate: rate, keeps: keeps}
}

func (n *tenants) isIdle() bool { return len(n.all) == 0 && !n.rate.isSet() && !n.keeps }

func (n *tenants) note(x *tenant, t time.Duration) {
	if x.state == Up && t >= x.paused {
		delete(n.limited, x.name)
	} else {
		n.limited[x.name] = x
	}
}

// find returns a tenant, and makes it if there is something to remember.
func (n *tenants) find(name string, t time.Duration, remember bool) *tenant {
	for range 2 { // faster than tenants are added, so that checks reach all
		n.tidy(t)
	}
	x := n.all[name]
	if x == nil && (remember || n.rate.isSet() || n.keeps) {
		x = &tenant{name: name, rate: n.rate}
		x.rate.at, x.pace.begun = t, t
		n.all[name] = x
		n.list = append(n.list, x)
		n.most = max(n.most, len(n.list))
	}
	if x != nil {
		x.asked = t
	}
	return x
}

// tidy checks the next tenant of a long list, and forgets it at rest.
func (n *tenants) tidy(t time.Duration) {
	last := len(n.list) - 1
	if last < fewTenants {
		return
	}
	if n.at++; n.at > last {
		n.at = 0
	}
	x := n.list[n.at]
	if t-x.asked < rests || t-x.paused < rests {
		return
	}
	if x.state == Held || x.state != Up && t-x.asked < forgetsDown {
		return
	}
	if x.rate.fill(t); x.rate.level < x.rate.burst {
		return
	}
	delete(n.all, x.name)
	delete(n.limited, x.name)
	n.list[n.at], n.list[last] = n.list[last], nil
	n.list = n.list[:last]
	if n.most > 4*max(last, fewTenants) { // a map does not shrink
		all := make(map[string]*tenant, last)
		for _, x := range n.list {
			all[x.name] = x
		}
		n.all = all
		n.list = append([]*tenant(nil), n.list...)
		n.most = last
	}
}

// isAbandoned reports whether the tenant may try its service, but has made no call for
// long: without messages it would stay in this state for ever.
func (x *tenant) isAbandoned(t time.Duration) bool {
	return x.state == Probing && x.probes(t) == 0 && t-max(x.asked, x.since) >= forgetsDown
}

// leave lets other seats try the services that p was trying.
func (n *tenants) leave(p *seat) {
	for _, x := range n.limited {
		if x.trying && x.prober.seat == p {
			x.trying = false
		}
	}
}

func (x *tenant) wait(t time.Duration, cost float64) time.Duration {
	if t < x.paused {
		return x.paused - t
	}
	x.rate.fill(t)
	return x.rate.wait(cost)
}

// obey pauses the tenant for a demanded delay (law B6).
func (x *tenant) obey(t, demanded time.Duration) {
	x.paused = max(x.paused, t+demanded)
	x.rate.empty(x.paused)
	if x.state == Down {
		x.until = max(x.until, x.paused)
	}
}

// askAgain is the shortest wait of an element kept from its call by a pause.
const askAgain = 100 * time.Millisecond

// BreaksTenants implements gate.Backend.
func (p protocol) BreaksTenants() bool { return p.breaksTenants }

// Restrictions implements gate.Backend.
func (p protocol) Restrictions() (list []gate.Restriction, next time.Duration) {
	b := p.Backend
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	for _, x := range b.tenants.limited {
		b.advance(x, t)
		b.tenants.note(x, t)
		if x.state == Up && t >= x.paused {
			continue
		}
		share, wait := x.share(t)
		list = append(list, gate.Restriction{Tenant: x.name, Share: share})
		if next == 0 || wait < next {
			next = wait
		}
	}
	return list, next
}

// TenantsDown implements gate.Backend.
func (p protocol) TenantsDown(n int) (list []gate.TenantReport) {
	b := p.Backend
	t := b.now()
	b.mu.Lock()
	defer b.unlock()
	for _, x := range b.tenants.limited {
		b.advance(x, t)
		r := gate.TenantReport{Tenant: x.name, State: x.state.String(), Why: x.why}
		switch x.state {
		case Down, Probing:
			r.Since = b.epoch.Add(x.troubled) // between probes the state changes often
		case Held:
			r.Since = b.epoch.Add(x.since)
		case Up, Ramping:
			continue
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b gate.TenantReport) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Tenant, b.Tenant))
	})
	return list[:min(n, len(list))]
}

// share returns the share of the usual messages in flight that the state of h allows, and
// the time until it may allow more.
func (h *health) share(t time.Duration) (share float64, wait time.Duration) {
	switch h.state {
	case Held:
		return 0, heldAgain
	case Down:
		return 0, h.until - t
	case Up, Probing, Ramping:
	}
	if t < h.paused {
		return 0, h.paused - t
	}
	switch h.state {
	case Probing:
		if wait := h.probes(t); wait > 0 { // another message would only be released again
			return 0, min(wait, heldAgain) // the probe may end earlier
		}
		return oneMessage, heldAgain
	case Ramping:
		grown := float64(max(0, t-h.since)) / float64(h.rampOver)
		return max(oneMessage, grown), h.rampOver/rampSteps + 1
	case Up, Down, Held:
	}
	return 1, heldAgain
}

const (
	oneMessage = 1e-9 // rounded up to one message
	rampSteps  = 20
)
