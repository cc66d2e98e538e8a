package server

import (
	"time"

	"github.com/weirflow/weir/exactlyonce"
)

// What is charged for the bookkeeping, in bytes: measured with the maps that hold it,
// rounded up. See TestBytesAreHonest.
const (
	principalCost = 176
	clientCost    = 416
	slabCost      = 4096 // of some records
	recordCost    = slabCost / slabSize
	pageCost      = 320 // of the records of numbers that follow each other
	flightCost    = 512 // while an attempt runs: its call, its context
	waiterCost    = 256
	spanCost      = 48
	evictedCost   = 256 // of a client that has spans
	stepCost      = 128 // of the spans of a step, without its name
	tombstoneCost = 160
)

// clientKey names a client among those of all principals.
type clientKey struct {
	scope  string
	client exactlyonce.Client
}

// client is what is known of one client. Everything is guarded by Results.mu.
type client struct {
	at        links[client] // in principal.idle while nothing runs, else in Results.busy
	pinned    pinned        // in principal.pinned while requests run and there are spans
	principal *principal
	key       clientKey
	heard     time.Duration   // when a request came, or the last one ended
	told      time.Duration   // when a mark for Records was last noted
	renewed   time.Duration   // orders Results.busy: when the client began to run requests, or was noted there
	confirmed time.Duration   // when Records last took a mark of the client
	before    int64           // everything below is STALE; never falls
	swept     int64           // records below are removed, but for those that run
	answered  int64           // the highest number with an answer, also one that is gone
	forgot    time.Duration   // requests that were first sent before may have had an answer that is forgotten
	running   int             // records in progress
	pages     map[int64]*page // by sequence number / pageSize; none is empty
	count     int             // of records
	evicted   evicted
	found     bool // Records were asked about this client
}

func (c *client) links() *links[client] { return &c.at }

// pinned is a client in principal.pinned.
type pinned struct {
	at     links[pinned]
	client *client // nil if the client is not in the list
}

func (p *pinned) links() *links[pinned] { return &p.at }

// pin puts c into principal.pinned, or takes it out. It is called after each change of
// running and of the spans.
func (c *client) pin() {
	wasPinned := c.pinned.client != nil
	isPinned := c.running > 0 && c.evicted.spans > 0
	switch {
	case isPinned && !wasPinned:
		c.pinned.client = c
		c.principal.pinned.pushBack(&c.pinned)
	case wasPinned && !isPinned:
		c.principal.pinned.remove(&c.pinned)
		c.pinned.client = nil
	}
}

// page is the records of numbers that follow each other, as those of a client do.
type page struct {
	used    int // numbers with a record
	records [pageSize]*record
}

const pageSize = 31 // so that a page has 256 bytes

// record is a request that runs or has an answer. Everything is guarded by Results.mu.
// Its memory is used again: see slab.
type record struct {
	at      links[record] // in principal.aged while there is an answer, in slabs.free while there is no request
	slab    *slab
	client  *client
	seq     int64
	step    string
	other   *record // of the same number and another step
	print   [32]byte
	flight  *flight // while it runs
	answer  []byte  // of a completed one; never changed
	touched time.Duration
	attempt int // that answered
}

func (rec *record) links() *links[record] { return &rec.at }

// cost is what rec is charged for, besides its part of a slab and a page.
func (rec *record) cost() int64 { return int64(len(rec.step)) + int64(cap(rec.answer)) }

// first returns a record of a number, or nil. Others are behind it: those of other steps.
func (c *client) first(seq int64) *record {
	p := c.pages[seq/pageSize]
	if p == nil {
		return nil
	}
	return p.records[seq%pageSize]
}

// get returns the record of a request, or nil.
func (c *client) get(seq int64, step string) *record {
	rec := c.first(seq)
	for rec != nil && rec.step != step {
		rec = rec.other
	}
	return rec
}

// put adds a record, and returns how many pages that took.
func (c *client) put(rec *record) (pages int) {
	p := c.pages[rec.seq/pageSize]
	if p == nil {
		p, pages = &page{}, 1
		c.pages[rec.seq/pageSize] = p
	}
	first := &p.records[rec.seq%pageSize]
	if *first == nil {
		p.used++
	}
	rec.other, *first = *first, rec
	c.count++
	return pages
}

// remove removes a record, and returns how many pages are no longer needed.
func (c *client) remove(rec *record) (pages int) {
	c.count--
	p := c.pages[rec.seq/pageSize]
	at := &p.records[rec.seq%pageSize]
	for *at != rec {
		at = &(*at).other
	}
	*at, rec.other = rec.other, nil
	if p.records[rec.seq%pageSize] != nil {
		return 0
	}
	if p.used--; p.used > 0 {
		return 0
	}
	delete(c.pages, rec.seq/pageSize)
	return 1
}

// all yields the records. Those that it has yielded may be removed meanwhile.
func (c *client) all(yield func(*record) bool) {
	for _, p := range c.pages {
		for _, rec := range p.records { // a copy
			for rec != nil {
				next := rec.other
				if !yield(rec) {
					return
				}
				rec = next
			}
		}
	}
}
