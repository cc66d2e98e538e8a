package server

import (
	"time"

	"github.com/weirflow/weir/internal/fifo"
)

// The bounded quantities.
const (
	ofClients = iota
	ofRecords
	ofBytes
	bounds
)

// principal is the state of the clients of one scope. Results.mu guards everything.
type principal struct {
	at         links[principal] // in Results.silent while it has clients
	scope      string
	used       [bounds]int64         // its part of the bounds; bytes include a share of a slab for each record
	runs       [bounds]int64         // the part of used of running requests; never removed
	idle       list[client, *client] // without running requests, the longest silent first
	pinned     list[pinned, *pinned] // clients with running requests and spans of removed answers
	aged       list[record, *record] // with an answer, the least recently asked for first
	tombstones int
}

func (p *principal) links() *links[principal] { return &p.at }

// tombstone is the mark of a forgotten client: earlier requests are STALE, later ones
// NEW.
type tombstone struct {
	heard  time.Duration
	before int64
	forgot time.Duration
}

type dated struct {
	key   clientKey
	heard time.Duration
}

// tombstoneAge is how long a tombstone is kept, in ClientSilences.
const tombstoneAge = 24

// principal returns the principal of a scope, perhaps a new one. The functions here run
// under mu.
func (r *Results) principal(scope string) *principal {
	p := r.principals[scope]
	if p == nil {
		p = &principal{scope: scope}
		r.principals[scope] = p
		r.use(p, ofBytes, principalCost+int64(len(scope)))
	}
	return p
}

func (r *Results) leave(p *principal) {
	if r.principals[p.scope] != p || p.used[ofClients] > 0 || p.tombstones > 0 {
		return
	}
	r.use(p, ofBytes, -principalCost-int64(len(p.scope)))
	delete(r.principals, p.scope)
	for i, most := range r.most {
		if most == p {
			r.most[i] = nil
		}
	}
}

func (r *Results) use(p *principal, of int, n int64) {
	r.used[of] += n
	p.used[of] += n
	if most := r.most[of]; most == nil || p.used[of] > most.used[of] {
		r.most[of] = p
	}
}

// mayRun reports whether p may run one more request. The running requests of a principal
// take at most half of each bound and, with the marks of its clients, three quarters of
// the bytes (law X3). client is true if the request's client runs no other request.
func (r *Results) mayRun(p *principal, client bool) bool {
	more := runCost(client)
	for of := range bounds {
		if !r.isHalf(p, of, more[of]) {
			return false
		}
	}
	return 4*(p.runs[ofBytes]+more[ofBytes]+p.marks()) <= 3*r.max[ofBytes]
}

// mayMark reports whether p may have one more client, after removing due entries. Its
// running requests and the marks of its clients, which must stay within ClientSilence
// (law X1), take at most half of the bytes.
func (r *Results) mayMark(p *principal, now time.Duration) bool {
	for !r.isHalf(p, ofBytes, runCost(true)[ofBytes]+p.marks()) {
		if r.removeDue(p, now, 1, nil, true) == 0 {
			return false
		}
	}
	return true
}

func (p *principal) marks() int64 { return tombstoneCost * int64(p.tombstones) }

// isHalf reports whether p's running requests and more fit in half of a bound.
func (r *Results) isHalf(p *principal, of int, more int64) bool {
	return 2*(p.runs[of]+more) <= r.max[of]+1
}

// run notes that a request of p begins (n is 1) or has ended (n is -1).
func (p *principal) run(n int64, client bool) {
	for of, more := range runCost(client) {
		p.runs[of] += n * more
	}
}

func runCost(client bool) [bounds]int64 {
	cost := [bounds]int64{ofRecords: 1, ofBytes: pageCost + flightCost + recordCost}
	if client {
		cost[ofClients] = 1
		cost[ofBytes] += clientCost
	}
	return cost
}

// exceeded returns a bound that more would exceed, or bounds if there is room.
func (r *Results) exceeded(more [bounds]int64) int {
	if more[ofRecords] > 0 && r.slabs.needs() {
		more[ofBytes] += slabCost
	}
	for of := range bounds {
		if r.used[of]+more[of] > r.max[of] {
			return of
		}
	}
	return bounds
}

// evictFor reports whether there is room for more of p (law X3). To make room, it first
// removes due entries. Then it evicts from another principal that uses more than half of
// the bound. If eviction is allowed, it also evicts from p, and then from the longest
// silent principal. It keeps the client keep.
func (r *Results) evictFor(p *principal, now time.Duration, more [bounds]int64, keep *client) bool {
	for {
		of := r.exceeded(more)
		if of == bounds {
			return true
		}
		most, silent := r.most[of], r.silent.first
		greedy := most != nil && most != p && 2*most.used[of] > r.max[of]
		evict := r.config.Evict || r.config.Records != nil // memory is a cache of Records
		switch {
		case r.removeDue(p, now, 1, keep, true) > 0:
		case silent != nil && silent != p && r.removeDue(silent, now, 1, keep, true) > 0:
			r.leave(silent) // its own bytes are room, too
		case greedy && r.evictOne(most, of, keep):
			r.leave(most)
		case evict && r.evictOne(p, of, keep):
		case evict && r.evictSilent(p, of, keep):
		default:
			return false
		}
	}
}

// evictSilent evicts from the longest silent principal, except p. Principals with only
// running requests go to the end of the list, to shorten the next search.
func (r *Results) evictSilent(p *principal, of int, keep *client) bool {
	for last := r.silent.last; last != nil; {
		q := r.silent.first
		if q != p && r.evictOne(q, of, keep) {
			r.leave(q)
			return true
		}
		r.silent.moveBack(q)
		if q == last {
			break
		}
	}
	return false
}

func (r *Results) evictOne(p *principal, of int, keep *client) bool {
	if rec := p.aged.first; rec != nil && of != ofClients {
		r.stats.Evicted++
		r.forget(rec, true)
		return true
	}
	c := p.idle.first
	if c != nil && c == keep {
		c = c.at.next
	}
	if c != nil {
		r.stats.EvictedClients++
		r.forgetClient(c)
		return true
	}
	return of == ofBytes && r.halveSpans(p, keep)
}

// halveSpans gives up half of the spans of a client of p whose running requests keep it,
// with the unseen numbers between them (law X3). The clients take turns.
func (r *Results) halveSpans(p *principal, keep *client) bool {
	next := p.pinned.first
	if next != nil && next.client == keep {
		next = next.at.next
	}
	if next == nil {
		return false
	}
	p.pinned.moveBack(next)
	r.raise(next.client, next.client.evicted.half())
	return true
}

// removeDue removes entries of p that have reached their age, and tombstones of all
// principals, and returns how many, at most n. If pressed, it removes tombstones already
// after ClientSilence.
func (r *Results) removeDue(p *principal, now time.Duration, n int, keep *client, pressed bool) (removed int) {
	silence := r.config.ClientSilence
	for removed < n {
		if rec := p.aged.first; rec != nil && now-rec.touched >= r.config.AnswerAge {
			r.stats.Collected++
			r.forget(rec, true)
		} else if c := p.idle.first; c != nil && c != keep && now-c.heard >= silence {
			r.stats.CollectedClients++
			r.forgetClient(c)
		} else if r.tombQueue.Len() > 0 && (now-r.tombQueue.Peek().heard)/tombstoneAge >= silence ||
			pressed && r.tombQueue.Len() > 0 && now-r.tombQueue.Peek().heard >= silence { // of any principal
			if at := r.tombQueue.Pop(); r.isCurrent(at) {
				r.forgot = max(r.forgot, now-silence) // not before the client's last request
				of := r.principals[at.key.scope]
				if r.dropTombstone(of, at.key); of != p {
					r.leave(of)
				}
			}
		} else {
			break
		}
		removed++
	}
	return removed
}

// forgetClient removes an idle client and its answers. Its tombstone makes all answered
// requests STALE; Records do that themselves.
func (r *Results) forgetClient(c *client) {
	p := c.principal
	for rec := range c.all {
		r.forget(rec, false)
	}
	p.idle.remove(c)
	delete(r.clients, c.key)
	delete(r.lagging, c)
	r.stats.Clients--
	if before := max(c.before, c.answered+1); before > 1 && r.config.Records == nil {
		p.tombstones++
		r.use(p, ofBytes, tombstoneCost)
		r.tombstones[c.key] = tombstone{c.heard, before, c.forgot}
		r.tombQueue.Push(dated{c.key, c.heard})
		if r.tombQueue.Len() > 2*len(r.tombstones)+64 { // most of these clients have returned
			var queue fifo.Queue[dated]
			for at := range r.tombQueue.All() {
				if r.isCurrent(at) {
					queue.Push(at)
				}
			}
			r.tombQueue = queue
		}
	}
	r.use(p, ofClients, -1)
	if p.used[ofClients] == 0 {
		r.silent.remove(p)
	}
	r.use(p, ofBytes, -clientCost-c.evicted.cost())
}

// isCurrent reports whether at is the current tombstone: its client may have returned
// since.
func (r *Results) isCurrent(at dated) bool {
	e, ok := r.tombstones[at.key]
	return ok && e.heard == at.heard
}

func (r *Results) dropTombstone(p *principal, key clientKey) {
	delete(r.tombstones, key)
	p.tombstones--
	r.use(p, ofBytes, -tombstoneCost)
}
