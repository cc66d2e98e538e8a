package server

import (
	"time"

	"github.com/weirflow/weir/exactlyonce"
)

// Bytes charged for bookkeeping, measured with the maps that hold it and rounded up. See
// TestBytesAreHonest.
const (
	principalCost = 176
	clientCost    = 416
	slabCost      = 4096 // of slabSize records
	recordCost    = slabCost / slabSize
	pageCost      = 320 // of consecutive numbers
	flightCost    = 512 // while an attempt runs: its call, its context
	waiterCost    = 256
	spanCost      = 48
	evictedCost   = 256 // of a client that has spans
	stepCost      = 128 // of the spans of a step, without its name
	tombstoneCost = 160
)

type clientKey struct {
	scope  string
	client exactlyonce.Client
}

// client is the state of one client. Results.mu guards everything.
type client struct {
	at        links[client] // in principal.idle while no request runs, else in Results.busy
	pinned    pinned        // in principal.pinned while requests run and there are spans
	principal *principal
	key       clientKey
	heard     time.Duration   // when a request came or the last one ended
	told      time.Duration   // when a mark for Records was last noted
	renewed   time.Duration   // orders Results.busy: when the client joined it or was last noted
	confirmed time.Duration   // when Records last took a mark of the client
	before    int64           // everything below is STALE; never decreases
	swept     int64           // records below are removed, except running ones
	answered  int64           // the highest answered number, even if its answer was removed
	forgot    time.Duration   // answers of requests first sent earlier may be forgotten
	running   int             // records in progress
	pages     map[int64]*page // by sequence number / pageSize; without empty pages
	count     int             // of records
	evicted   evicted
	found     bool // Records were asked about this client
}

func (c *client) links() *links[client] { return &c.at }

type pinned struct {
	at     links[pinned]
	client *client // nil if the client is not in the list
}

func (p *pinned) links() *links[pinned] { return &p.at }

// pin puts c into principal.pinned or removes it, after each change of running and of the
// spans.
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

// page holds the records of consecutive numbers.
type page struct {
	used    int // numbers with a record
	records [pageSize]*record
}

const pageSize = 31 // so that a page has 256 bytes

// record is a request that runs or has an answer, in reused memory (slab). Results.mu
// guards everything.
type record struct {
	at      links[record] // in principal.aged with an answer, in slabs.free without a request
	slab    *slab
	client  *client
	seq     int64
	step    string
	other   *record // of the same number and another step
	print   [32]byte
	flight  *flight // while it runs
	answer  []byte  // of a completed request; never changed
	touched time.Duration
	attempt int // that answered
}

func (rec *record) links() *links[record] { return &rec.at }

// cost is the bytes charged for rec, besides slab and page.
func (rec *record) cost() int64 { return int64(len(rec.step)) + int64(cap(rec.answer)) }

// first returns the first record of a number, or nil. Other steps follow it.
func (c *client) first(seq int64) *record {
	p := c.pages[seq/pageSize]
	if p == nil {
		return nil
	}
	return p.records[seq%pageSize]
}

func (c *client) get(seq int64, step string) *record {
	rec := c.first(seq)
	for rec != nil && rec.step != step {
		rec = rec.other
	}
	return rec
}

// put adds a record and returns the number of new pages.
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

// remove removes a record and returns the number of removed pages.
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

// all yields the records, which may be removed meanwhile.
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
