package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
)

const (
	// Earlier versions use channelNow, too.
	channelNow   = "weir_messages"       // the payload is the queue: a message is due
	channelLater = "weir_messages_later" // microseconds, a space, and the queue

	coalesced = 10 * time.Millisecond // notices of a process are sent together
	lookEvery = 20 * time.Second      // for messages without a notice, such as of a process that died
	patience  = 10 * time.Second      // for a statement of the hub
	probeWait = 2 * time.Second       // for probe's notification
	maxQueue  = 7000                  // bytes of a queue's name in a payload; longer names are found by looking
)

const notify = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)"

type notice struct {
	queue string
	delay time.Duration
}

// dues is when messages of a queue become due: at once, and the first of the others.
type dues struct {
	now   bool
	later time.Duration // 0 if there is no other
}

func (d *dues) add(delay time.Duration) {
	switch {
	case delay <= 0:
		d.now = true
	case d.later == 0 || delay < d.later:
		d.later = delay
	}
}

func duesOf(rows []storesql.Row) (d dues) {
	for _, r := range rows {
		d.add(r.Delay)
	}
	return d
}

func (d dues) notices(queue string) (all []notice) {
	if d.now {
		all = append(all, notice{queue: queue})
	}
	if d.later > 0 {
		all = append(all, notice{queue, d.later})
	}
	return all
}

func (n notice) channel() string {
	if n.delay > 0 {
		return channelLater
	}
	return channelNow
}

func (n notice) payload() string {
	switch {
	case len(n.queue) > maxQueue:
		return ""
	case n.delay > 0:
		return strconv.FormatInt(micros(n.delay), 10) + " " + n.queue
	}
	return n.queue
}

func readNotice(channel, payload string) notice {
	if channel == channelLater {
		digits, queue, _ := strings.Cut(payload, " ")
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n < int64(time.Duration(1<<62)/time.Microsecond) {
			return notice{queue, time.Duration(n) * time.Microsecond}
		}
	}
	return notice{queue: payload}
}

// news are unsent notices, sent together and outside of the transactions that put:
// commits that notify wait for each other.
type news struct {
	mu      sync.Mutex
	pending map[string]dues // by queue
	running bool            // a goroutine sends

	closed  chan struct{} // closed by Close
	sending sync.WaitGroup
}

// close waits until the pending notices were tried once more.
func (n *news) close() {
	close(n.closed)
	n.sending.Wait()
}

// Called with mu held.
func (n *news) add(queue string, d dues) {
	if n.pending == nil {
		n.pending = map[string]dues{}
	}
	all := n.pending[queue]
	all.now = all.now || d.now
	if d.later > 0 {
		all.add(d.later)
	}
	n.pending[queue] = all
}

// note announces to all processes when messages are due.
func (s *Engine) note(queue string, d dues) {
	if d.now { // delays reach the hub as notifications, like notices of other processes
		s.hub.wake(queue)
	}
	if !s.calls.Begin() { // Close waits for notices to be sent
		return
	}
	defer s.calls.End()
	n := &s.news
	n.mu.Lock()
	defer n.mu.Unlock()
	n.add(queue, d)
	if !n.running {
		n.running = true
		timer := s.clock.Timer(coalesced)      // here: a test may move its clock before the goroutine runs
		n.sending.Go(func() { s.send(timer) }) // ends when all was sent, or with Close
	}
}

// sendTries is how often sending is tried, about a second apart. After that, looks find
// the messages.
const sendTries = 60

// send sends the pending notices until all are sent. It gives up after sendTries failures
// in a row.
func (s *Engine) send(timer *clock.Timer) {
	n := &s.news
	defer timer.Stop()
	failed := 0
	for pause, last := coalesced, false; ; timer.Reset(pause) {
		select {
		case <-timer.C:
		case <-n.closed:
			last = true
		}
		n.mu.Lock()
		pending := n.pending
		n.pending = nil
		n.running = len(pending) > 0
		if !n.running {
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		if s.notify(pending) == nil {
			pause, failed = coalesced, 0
			continue
		}
		if last {
			return
		}
		pause = min(2*pause, time.Second)
		n.mu.Lock()
		if failed++; failed == sendTries { // the pool may be closed, and the engine not
			n.pending, n.running = nil, false
			n.mu.Unlock()
			return
		}
		for queue, d := range pending {
			if d.later > 0 {
				d.later = time.Microsecond // time has passed: others look when it is due
			}
			n.add(queue, d)
		}
		n.mu.Unlock()
	}
}

func (s *Engine) notify(pending map[string]dues) error {
	var channels, payloads []string
	for queue, d := range pending {
		for _, t := range d.notices(queue) {
			channels, payloads = append(channels, t.channel()), append(payloads, t.payload())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := s.pool.Exec(ctx, notify, channels, payloads)
	return err
}

// hub wakes the sources of a process: one connection listens for all, and one statement
// finds what is due next. It runs while there are sources.
type hub struct {
	mu      sync.Mutex
	waiting map[string]map[*waiter]bool // by queue
	fresh   map[string]bool             // queues with a source that was not woken yet
	running bool
	hears   bool // it listens: a source need not poll
	closed  bool
	changed chan struct{}      // capacity 1: makes run look at the sources
	stop    context.CancelFunc // ends run
	ended   sync.WaitGroup     // run
}

type waiter struct {
	wake  func(misses bool)
	ended chan error // capacity 1: receives the error when the hub stops
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	h.end(store.ErrClosed)
	if h.running {
		h.stop()
	}
	h.mu.Unlock()
	h.ended.Wait()
}

// Called with mu held.
func (h *hub) end(err error) {
	for _, waiters := range h.waiting {
		for w := range waiters {
			w.ended <- err
			delete(waiters, w)
		}
	}
}

func (h *hub) wake(queue string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.waiting[queue] {
		w.wake(!h.hears)
	}
}

// queues returns the queues that have sources, and the queues with new sources. The loop
// that listens calls it, and ends if there are no sources.
func (h *hub) queues() (names []string, fresh map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.waiting {
		names = append(names, name)
	}
	fresh, h.fresh = h.fresh, map[string]bool{}
	h.hears = len(names) > 0
	return names, fresh
}

// Wake implements [store.Waker]. All sources of an engine share a connection outside the
// pool.
func (s *Engine) Wake(ctx context.Context, queue string, wake func(misses bool)) error {
	if err := s.do(ctx, func() error { return nil }); err != nil {
		return err
	}
	w := &waiter{wake: wake, ended: make(chan error, 1)}
	if err := s.await(queue, w); err != nil {
		return err
	}
	h := &s.hub
	h.poke()
	defer func() {
		h.mu.Lock()
		if delete(h.waiting[queue], w); len(h.waiting[queue]) == 0 {
			delete(h.waiting, queue)
		}
		last := len(h.waiting) == 0
		h.mu.Unlock()
		if last {
			h.poke()
		}
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-w.ended:
		return err
	}
}

func (s *Engine) await(queue string, w *waiter) error {
	h := &s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return store.ErrClosed
	}
	if h.waiting == nil {
		h.waiting = map[string]map[*waiter]bool{}
		h.fresh = map[string]bool{}
		h.changed = make(chan struct{}, 1)
	}
	if h.waiting[queue] == nil {
		h.waiting[queue] = map[*waiter]bool{}
	}
	h.waiting[queue][w], h.fresh[queue] = true, true
	if !h.running {
		h.running = true
		var ctx context.Context
		ctx, h.stop = context.WithCancel(context.Background())
		h.ended.Go(func() { s.runHub(ctx) }) // ends when no source is left, with an error, or with Close
	}
	return nil
}

func (h *hub) poke() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// runHub runs the hub until no source is left. If it fails, all sources end with the
// error.
func (s *Engine) runHub(ctx context.Context) {
	h := &s.hub
	for {
		err := s.listen(ctx)
		h.mu.Lock()
		if err == nil && len(h.waiting) > 0 && !h.closed {
			h.mu.Unlock()
			continue // one came just now
		}
		h.end(explain(err))
		h.running = false
		h.stop()
		h.mu.Unlock()
		return
	}
}

// listener returns a listening connection, made as the pool makes its own.
func (s *Engine) listener(ctx context.Context) (*pgx.Conn, error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	c := s.pool.Config()
	if c.BeforeConnect != nil { // it may set the password
		if err := c.BeforeConnect(ctx, c.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, c.ConnConfig)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channelNow+"; LISTEN "+channelLater); err != nil {
		giveUp(conn)
		return nil, err
	}
	if err := s.probe(ctx, conn); err != nil {
		giveUp(conn)
		return nil, err
	}
	return conn, nil
}

// probe checks that notifications arrive: behind a pooler of transactions LISTEN succeeds
// without effect. It may drop others' notifications, since the hub looks at all queues
// afterwards. Another connection sends the test notification, because a pooler may return
// a connection's own.
func (s *Engine) probe(ctx context.Context, conn *pgx.Conn) error {
	payload := "weir probe " + rand.Text()
	if _, err := s.pool.Exec(ctx, "SELECT pg_notify($1, $2)", channelNow, payload); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, probeWait)
	defer stop()
	for {
		n, err := conn.WaitForNotification(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("no notification arrived within %v, as behind a pooler of transactions: %w", probeWait, err)
		case n.Payload == payload:
			return nil
		}
	}
}

func giveUp(conn *pgx.Conn) {
	closing, done := context.WithTimeout(context.Background(), time.Second)
	defer done()
	_ = conn.Close(closing)
}

// listen wakes sources, and returns nil when no source is left.
func (s *Engine) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := s.listener(ctx)
	if err != nil {
		return err
	}
	notices, failed := make(chan notice), make(chan error, 1)
	var reading sync.WaitGroup
	reading.Go(func() { // ends with ctx, or with the connection
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case notices <- readNotice(n.Channel, n.Payload):
			case <-ctx.Done():
				return
			}
		}
	})
	defer func() {
		cancel()
		reading.Wait()
		giveUp(conn)
	}()
	err = s.waken(ctx, notices, failed)
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.hears = false
	return err
}

func (s *Engine) waken(ctx context.Context, notices <-chan notice, failed <-chan error) error {
	h := &s.hub
	next := map[string]time.Time{} // when a message of a queue becomes due
	timer := s.clock.Timer(0)
	defer timer.Stop()
	looked := time.Time{}
	for first := true; ; first = false {
		names, fresh := h.queues()
		if len(names) == 0 {
			return nil
		}
		if first { // it did not listen before
			for _, name := range names {
				fresh[name] = true
			}
		}
		now := s.clock.Now()
		due := len(fresh) > 0 || now.Sub(looked) >= lookEvery
		for _, at := range next {
			due = due || !at.After(now)
		}
		if due {
			if err := s.look(ctx, names, fresh, next); err != nil {
				return err
			}
			looked = now
		}
		until := looked.Add(lookEvery)
		for _, at := range next {
			if at.Before(until) {
				until = at
			}
		}
		timer.Reset(max(coalesced, until.Sub(s.clock.Now()))) // messages due within coalesced share a look
		select {
		case n := <-notices:
			if n.delay <= 0 {
				h.wake(n.queue)
				continue
			}
			at := s.clock.Now().Add(max(n.delay, coalesced)) // messages due soon share a look
			if before, ok := next[n.queue]; slices.Contains(names, n.queue) && (!ok || at.Before(before)) {
				next[n.queue] = at
			}
		case <-timer.C:
		case <-h.changed:
		case err := <-failed:
			return fmt.Errorf("listening: %w", err)
		}
	}
}

// look wakes the sources of due and fresh queues, and notes when the next message of each
// queue will be due.
func (s *Engine) look(ctx context.Context, names []string, fresh map[string]bool, next map[string]time.Time) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	asked := s.clock.Now()
	// Two steps of an index for each queue. With EXISTS, PostgreSQL may read the table in
	// place of the index.
	rows, err := s.pool.Query(ctx, `SELECT queue, (SELECT true FROM weir_messages AS m WHERE m.queue = q.queue AND at <= now ORDER BY at LIMIT 1) IS NOT NULL,
			ceil(extract(epoch FROM (SELECT at FROM weir_messages AS m WHERE m.queue = q.queue AND at > now ORDER BY at LIMIT 1) - now) * 1000000)::bigint
		FROM (SELECT `+s.now+` AS now) AS clock, unnest($1::text[]) AS q (queue)`, names)
	if err != nil {
		return err
	}
	var queue string
	var due bool
	var later *int64
	clear(next)
	_, err = pgx.ForEachRow(rows, []any{&queue, &due, &later}, func() error {
		if later != nil && *later < int64(lookEvery/time.Microsecond) {
			next[queue] = asked.Add(time.Duration(*later) * time.Microsecond)
		}
		if due || fresh[queue] {
			s.hub.wake(queue)
		}
		return nil
	})
	return err
}
