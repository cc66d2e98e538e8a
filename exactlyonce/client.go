package exactlyonce

import "time"

// What is charged for the bookkeeping, in bytes: measured with the maps that hold it, rounded up. See TestBytesAreHonest.
const (
	clientCost = 512
	recordCost = 208
	flightCost = 512 // while an attempt runs: its call, its context
	waiterCost = 256
	spanCost   = 48
	goneCost   = 128 // of an evicted client
)

// clientKey names a client among those of all principals.
type clientKey struct {
	scope  string
	client Client
}

// client is what is known of one client. Everything is guarded by Results.mu.
type client struct {
	at      links[client] // in Results.idle while nothing runs
	key     clientKey
	heard   time.Duration // when a request came, or the last one ended
	before  int64         // everything below is STALE; never falls
	swept   int64         // records below are removed, but for those that run
	highest int64         // of the numbers seen
	running int           // records in progress
	records map[int64]*record
	count   int // of records
	gone    gone
	found   bool // Records were asked about this client
}

func (c *client) links() *links[client] { return &c.at }

// record is a request that runs or has an answer. Everything is guarded by Results.mu.
type record struct {
	at      links[record] // in Results.aged while there is an answer
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

// cost is what rec is charged for.
func (rec *record) cost() int64 { return recordCost + int64(len(rec.step)) + int64(cap(rec.answer)) }

// get returns the record of a request, or nil.
func (c *client) get(seq int64, step string) *record {
	rec := c.records[seq]
	for rec != nil && rec.step != step {
		rec = rec.other
	}
	return rec
}

func (c *client) put(rec *record) {
	rec.other = c.records[rec.seq]
	c.records[rec.seq] = rec
	c.count++
}

func (c *client) remove(rec *record) {
	c.count--
	first := c.records[rec.seq]
	switch {
	case first != rec:
		for first.other != rec {
			first = first.other
		}
		first.other = rec.other
	case rec.other != nil:
		c.records[rec.seq] = rec.other
	default:
		delete(c.records, rec.seq)
	}
	rec.other = nil
}
