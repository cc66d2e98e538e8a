package server

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Stats are counters of [Results]. The first group holds current values; the others count
// since the start.
type Stats struct {
	Clients    int   // remembered
	Records    int   // requests that run or have an answer
	InProgress int   // requests that run
	Waiting    int   // attempts that wait for a running attempt
	Bytes      int64 // charged against MaxBytes
	PeakBytes  int64 // highest value so far, measured when a request was tracked

	New      uint64 // attempts that had to run their request
	Attached uint64 // attempts that waited for another attempt
	Replayed uint64 // attempts that got a stored answer
	Stale    uint64 // attempts that were refused with ErrStale

	Invalid        uint64 // refused with ErrInvalid
	Mismatched     uint64 // with ErrMismatch
	Refused        uint64 // with ErrFull
	TooManyWaiting uint64 // with ErrInProgress

	Completed uint64 // handlers that answered
	Failed    uint64 // handlers that ended without an answer
	TakenOver uint64 // changes of driver
	NotDriver uint64 // answers refused because another call had taken over

	Acknowledged     uint64 // answers removed because the client was done with them
	Collected        uint64 // answers removed for their age
	CollectedClients uint64 // clients forgotten for their silence
	Evicted          uint64 // answers removed to make room
	EvictedClients   uint64 // clients removed to make room
	Unkept           uint64 // answers that were too long, or did not fit
	CollectErrors    uint64 // calls of Collect that Records failed
}

// Stats returns the current counters.
func (r *Results) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Bytes = r.used[ofBytes]
	return s
}

const dumpAtMost = 10_000

// Dump writes all records for a person to read: a line for each client and below it a
// line for each request. After 10,000 lines it only reports how many are left out.
//
//	2 clients, 3 records (1 in progress), 0 waiting, 1968 bytes
//	client 0af7651916cd43dd8448eb211c80319c of "alice", heard 12s ago, stale below 5, gone 7-9
//	  6           COMPLETED by attempt 2, 17 bytes, asked for 1m3s ago
//	  10 charge   IN_PROGRESS, 1 waiting, 2 handlers, driver is attempt 3
func (r *Results) Dump(w io.Writer) error {
	now := r.now()
	lines, left := r.dump(now)
	b := bufio.NewWriter(w)
	for _, line := range lines {
		_, _ = b.WriteString(line + "\n") // Flush returns the error
	}
	if left > 0 {
		_, _ = fmt.Fprintf(b, "… and %d more\n", left)
	}
	return b.Flush()
}

func (r *Results) dump(now time.Duration) (lines []string, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines = append(lines, fmt.Sprintf("%d clients, %d records (%d in progress), %d waiting, %d bytes",
		r.stats.Clients, r.stats.Records, r.stats.InProgress, r.stats.Waiting, r.used[ofBytes]))
	clients := make([]*client, 0, min(len(r.clients), dumpAtMost))
	for _, c := range r.clients {
		if len(clients) == dumpAtMost {
			break
		}
		clients = append(clients, c)
	}
	slices.SortFunc(clients, func(a, b *client) int {
		return cmp.Or(cmp.Compare(a.key.scope, b.key.scope), slices.Compare(a.key.client[:], b.key.client[:]))
	})
	total := 1 + r.stats.Clients + r.stats.Records
	for _, c := range clients {
		if len(lines) >= dumpAtMost {
			break
		}
		lines = append(lines, c.line(now))
		records := make([]*record, 0, c.count)
		for rec := range c.all {
			records = append(records, rec)
		}
		slices.SortFunc(records, func(a, b *record) int {
			return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.step, b.step))
		})
		for _, rec := range records[:min(len(records), dumpAtMost-len(lines))] {
			lines = append(lines, rec.line(now))
		}
	}
	return lines, total - len(lines)
}

func (c *client) line(now time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "client %s of %q, heard %v ago, stale below %d", c.key.client, c.key.scope, (now - c.heard).Round(time.Millisecond), c.before)
	const atMost = 5
	for _, step := range slices.Sorted(maps.Keys(c.evicted.steps)) {
		b.WriteString(", gone")
		if step != "" {
			b.WriteString(" " + step)
		}
		spans := c.evicted.steps[step]
		for _, g := range spans[:min(atMost, len(spans))] {
			fmt.Fprintf(&b, " %d-%d", g.lo, g.hi)
		}
		if len(spans) > atMost {
			fmt.Fprintf(&b, " and %d more", len(spans)-atMost)
		}
	}
	return b.String()
}

func (rec *record) line(now time.Duration) string {
	name := fmt.Sprintf("  %d %s", rec.seq, rec.step)
	f := rec.flight
	if f == nil {
		return fmt.Sprintf("%-13s COMPLETED by attempt %d, %d bytes, asked for %v ago",
			name, rec.attempt, len(rec.answer), (now - rec.touched).Round(time.Millisecond))
	}
	s := fmt.Sprintf("%-13s IN_PROGRESS, %d waiting, %d handlers", name, f.waiting, f.handlers)
	if f.driver == nil {
		return s + ", no driver"
	}
	return fmt.Sprintf("%s, driver is attempt %d", s, f.driver.req.Attempt)
}
