package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/timers"
)

const (
	// maxPoll bounds the records of one poll, and so what arrives after a partition is
	// found full.
	maxPoll = 100
	// maxHeld bounds the messages of a partition that wait here for their time or to be
	// put.
	maxHeld = 1000
	// maxHeldBytes bounds their keys and values.
	maxHeldBytes = storearg.MaxBytes
	// fetchWait is the longest a fetch takes. A paused partition is fetched again only
	// after it.
	fetchWait = 500 * time.Millisecond
	// lookAgain is how often the source looks for layers of other versions.
	lookAgain = 5 * time.Minute
	// endWait bounds each of the last steps of a source: dead letters, commit, and
	// leaving the group.
	endWait = 10 * time.Second
)

var errClosed = errors.New("kafka: the source is closed")

// source is a [store.Receiver] that returns the records of topics as messages, as a
// member of a consumer group.
//
// It commits the lowest unsettled offset of each partition. Settled ranges above it go
// into the metadata of the commit, so the next owner does not deliver them again. Before
// the metadata is full, the source stops fetching that partition until something is
// settled.
//
// A nacked message waits in memory and is redelivered by this source; later messages of
// its partition continue. The time until which it waits is committed, too. A message
// whose header Weir-Due is in the future waits in the same way.
type source struct {
	client *kgo.Client // set by newSource; callbacks run earlier, so they use their argument
	sourceSettings

	start  time.Time
	ctx    context.Context // of polls, commits and puts; ends with Close
	cancel context.CancelCauseFunc
	demand chan struct{} // capacity 1; wakes the poller: Receive waits for messages
	given  chan struct{} // capacity 1; wakes Receive: there may be messages
	kick   chan struct{} // capacity 1; wakes the goroutine of puts: something is to be put, or was settled
	ended  sync.WaitGroup

	receiving sync.Mutex    // held by Receive, and at the end
	closing   sync.Once     // begins the end
	left      chan struct{} // closed after the client is closed; then leaveErr is read
	leaveErr  error
	forgotten func() // called then; written before the source is used

	damaged  *counting.FailureLog                              // guarded by receiving
	onReject func(meta message.Meta, err error) (rejects bool) // set before the first Receive; may be nil

	mu         sync.Mutex // guards the fields below; not held while user code, a logger or the client runs, except for pauses
	parts      map[partitionID]*part
	running    map[partitionID]map[int64]*entry // returned by Receive and unsettled, lost partitions included
	ready      []*entry                         // to be returned
	waiting    timers.Heap[*entry]
	putting    []*entry // to be put among the dead letters
	leasesLost int      // see LeasesLost
	want       int      // how many messages the running Receive asks for, or 0
	failure    error    // for the next Receive
	closed     bool
}

// putFunc stores messages durably. It may be called again with the same messages.
type putFunc = func(ctx context.Context, ms ...store.Message) error

type sourceSettings struct {
	client         []kgo.Opt
	clock          clock.Clock
	logger         *slog.Logger
	commitInterval time.Duration
	settleTime     time.Duration                               // see WithSettleTime
	metadata       int                                         // characters that a commit may have; guarded by source.mu
	dead           putFunc                                     // stores rejected messages
	others         func(ctx context.Context) ([]string, error) // layers of other versions, now
}

// newSource returns a source of topics for a group. It returns an error for invalid
// options of the client or a refused authentication. It waits up to 3 s for brokers that
// do not answer. The source must be closed.
func newSource(group string, topics []string, set sourceSettings) (*source, error) {
	s := &source{
		sourceSettings: set, start: set.clock.Now(),
		demand: make(chan struct{}, 1), given: make(chan struct{}, 1), kick: make(chan struct{}, 1), left: make(chan struct{}),
		parts: map[partitionID]*part{}, running: map[partitionID]map[int64]*entry{}, forgotten: func() {},
	}
	s.damaged = counting.NewFailureLog(s.logger, s.clock, "weir: a record cannot be read and goes to the dead letters")
	client := append([]kgo.Opt{kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(fetchWait)}, set.client...)
	client = append(client, kgo.KeepControlRecords(), // the last record may be a marker, which the group must pass
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(s.assigned), kgo.OnOffsetsFetched(s.fetched), kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.lost))
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	var err error
	s.client, err = newClient(client...)
	if err != nil {
		return nil, err
	}
	commit := s.clock.Ticker(s.commitInterval)
	retry := s.clock.Timer(time.Hour)
	look := s.clock.Ticker(lookEvery)
	retry.Stop()
	s.ended.Go(s.poll)                       // ends with Close
	s.ended.Go(func() { s.commits(commit) }) // ends with Close
	s.ended.Go(func() { s.puts(retry) })     // ends with Close
	again := s.clock.Ticker(lookAgain)
	s.ended.Go(func() { s.follow(again) }) // ends with Close
	s.ended.Go(func() { watchTopics(s.ctx, s.client, look, s.logger, slices.Clone(topics)) })
	return s, nil
}

// follow adds layers that other program versions make meanwhile.
func (s *source) follow(look *clock.Ticker) {
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-s.ctx.Done():
			return
		}
		layers, err := s.others(s.ctx)
		if err != nil && s.ctx.Err() == nil {
			s.logger.Warn("weir: could not look for layers of other versions, which is tried again", "error", err)
		}
		s.client.AddConsumeTopics(layers...) // it knows most of them
	}
}

func (s *source) now() time.Duration { return s.clock.Now().Sub(s.start) }

func (s *source) Receive(ctx context.Context, n int) ([]message.Message[[]byte], error) {
	if n < 1 {
		panic(fmt.Sprintf("kafka: Receive: n is %d, must be at least 1", n))
	}
	s.receiving.Lock()
	defer s.receiving.Unlock()
	for {
		s.damaged.FlushDue()
		entries, wait, err := s.take(n)
		if err != nil {
			return nil, err
		}
		if ms := s.messages(entries); len(ms) > 0 {
			return ms, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(entries) == 0 { // otherwise there may be more behind unreadable ones
			s.await(ctx, n, wait)
		}
	}
}

func (s *source) await(ctx context.Context, n int, wait time.Duration) {
	s.setWant(n)
	defer s.setWant(0)
	var due <-chan time.Time
	if wait > 0 {
		timer := s.clock.Timer(wait)
		defer timer.Stop()
		due = timer.C
	}
	wake(s.demand)
	select {
	case <-s.given:
	case <-due:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
}

func (s *source) setWant(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = n
}

// take returns ready messages, or how long the first waiting message has to wait, 0 if
// there is none.
func (s *source) take(n int) (entries []*entry, wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, errClosed
	}
	if err := s.failure; err != nil {
		s.failure = nil
		return nil, 0, err
	}
	now := s.now()
	for len(entries) < n {
		at, ok := s.waiting.Next()
		if !ok || at > now { // law D3
			if ok {
				wait = at - now
			}
			break
		}
		entries = append(entries, s.waiting.Pop().Value)
	}
	more := min(n-len(entries), len(s.ready))
	entries = append(entries, s.ready[:more]...)
	s.ready = slices.Delete(s.ready, 0, more)
	for _, e := range entries {
		e.state, e.due = running, time.Time{}
		e.part.busy++
		s.run(e)
	}
	return entries, wait, nil
}

// run notes that a message is being worked on. Called with mu held.
func (s *source) run(e *entry) {
	of := s.running[e.part.id]
	if of == nil {
		of = map[int64]*entry{}
		s.running[e.part.id] = of
	}
	of[e.record.Offset] = e
	e.part.held -= e.size()
}

// messages converts entries. Messages with unreadable headers go to the dead letters.
func (s *source) messages(entries []*entry) []message.Message[[]byte] {
	ms := make([]message.Message[[]byte], 0, len(entries))
	for _, e := range entries {
		if err := e.damaged; err != nil {
			s.reject(e, decoder.Unreadable(err))
			continue
		}
		ms = append(ms, message.New(e.record.Value, e.meta, func(v message.Settlement) { s.settle(e, v) }))
	}
	return ms
}

var _ settle.Rejecter = (*source)(nil)

// OnReject implements [settle.Rejecter].
func (s *source) OnReject(f func(meta message.Meta, err error) (rejects bool)) { s.onReject = f }

// reject rejects a record that cannot be read, or releases it if the receiver has
// stopped.
func (s *source) reject(e *entry, err error) {
	rejects := s.onReject == nil || s.onReject(*e.meta, err)
	if !rejects {
		s.settle(e, message.Settlement{Kind: message.Released})
		return
	}
	s.damaged.Add(err, "record", e.name())
	s.settle(e, message.Settlement{Kind: message.Rejected, Err: err})
}

func (s *source) settle(e *entry, v message.Settlement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.stop(e) {
		return
	}
	if e.part.paused { // it may be resumed now
		wake(s.kick)
	}
	switch v.Kind {
	case message.Done, message.HandedOver:
		e.part.settle(e)
	case message.Rejected:
		e.settlement = v
		s.put(e)
	case message.Released, message.Failed:
		e.part.changed++
		e.due = s.clock.Now().Add(v.Delay)
		s.wait(e, v.Delay)
		wake(s.given)
	}
}

// stop marks a message as no longer running. It returns false if its partition was lost.
// Called with mu held.
func (s *source) stop(e *entry) bool {
	of := s.running[e.id]
	if of[e.record.Offset] == e {
		if delete(of, e.record.Offset); len(of) == 0 {
			delete(s.running, e.id)
		}
	}
	if e.part == nil || e.state != running {
		return false
	}
	e.part.held += e.size()
	e.part.release()
	return true
}

// wait keeps a message in memory, unless its partition is being given up. Called with mu
// held.
func (s *source) wait(e *entry, d time.Duration) {
	e.state = waiting
	if !e.part.leaving {
		now := s.now()
		s.waiting.Arm(&e.timer, now+min(max(0, d), forever-now))
	}
}

// put passes a message to puts. Called with mu held.
func (s *source) put(e *entry) {
	e.state = putting
	e.part.busy++
	s.putting = append(s.putting, e)
	wake(s.kick)
}

func (s *source) poll() {
	for {
		select {
		case <-s.demand:
		case <-s.ctx.Done():
			return
		}
		for n := s.wanted(); n > 0 && s.ctx.Err() == nil; n = s.wanted() {
			s.arrived(s.client.PollRecords(s.ctx, n))
			s.client.AllowRebalance() // until here, the client kept all partitions
			wake(s.given)
		}
	}
}

func (s *source) wanted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) > 0 {
		return 0
	}
	return min(s.want, maxPoll)
}

// Close implements [store.Receiver]. The source leaves the group even if ctx ends first.
func (s *source) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosed)
	s.closing.Do(func() { go s.end() })
	select {
	case <-s.left:
		return s.leaveErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end commits settlements and leaves the group. It runs on its own goroutine and always
// ends: a member that does not poll would keep its partitions from the others.
func (s *source) end() {
	defer close(s.left)
	s.ended.Wait()
	s.receiving.Lock() // a Receive has ended with ctx
	s.damaged.Flush()
	s.receiving.Unlock()
	step := func(f func(context.Context) error) error {
		ctx, enough := context.WithTimeout(context.Background(), endWait)
		defer enough()
		return f(ctx)
	}
	s.leaveErr = errors.Join(step(s.putAll), step(s.commit)) // messages not in the commit are redelivered
	if err := step(s.client.LeaveGroupContext); err != nil {
		s.logger.Warn("weir: could not leave the group, which notices by the session timeout", "error", err)
	}
	s.client.CloseAllowingRebalance()
	s.forgotten()
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func quietly(f func() error) error { return guard.Call(f, broken) }

func broken(recovered any) error { return guard.Recovered("kafka", recovered) }
