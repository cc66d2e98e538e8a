package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/ext/jetstream/internal/parallel"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// Foreign is a stream that other programs write or read: see [Config].
type Foreign struct {
	Stream   string // required; the stream must exist, and is not changed
	Consumer string // the durable consumer that all workers share; it is made if it is missing. "": the queue is only written
	// Subject is the subject to publish to. The default is the stream's only subject, if it does not have wildcards.
	Subject string
	// SubjectOf returns the subject of a message, if not nil. "": Subject.
	SubjectOf func(message.Meta) string
	// AckWait is the AckWait of the consumer when it is made, and so how long the messages of a worker that was killed stay with it. The default
	// is 30 s, the lease of a queue.
	AckWait time.Duration
}

const (
	maxAckPending = 1000            // of a consumer that Open makes
	confirm       = 5 * time.Second // for the server's answers
	maxGivenBack  = 10_000
	forGood       = 10 * 365 * 24 * time.Hour // a longer delay stands for ever

	// restartSlack is how much earlier a delay may end at a server that has restarted: it keeps the times in whole seconds.
	restartSlack = time.Second
)

// foreign is a queue whose new messages are in a stream of others. What comes back to it, or has a delay, is in the engine's.
type foreign struct {
	Foreign
	s        *Engine
	queue    string
	consumer jetstream.Consumer                                           // nil: it is only written
	pull     func(ctx context.Context, r pull, got func(*nats.Msg)) error // of its puller
	lease    time.Duration                                                // AckWait
	stays    bool                                                         // the stream keeps what was acknowledged

	asking chan struct{} // has room for one: who uses asker
	asker  asker

	mu        sync.Mutex
	held      map[uint64]*theirs      // by sequence number
	givenBack map[uint64]struct{}     // by this process, which has outlived them; at most maxGivenBack
	suspects  map[uint64]store.Leased // whose leases may have ended: each is returned alone
	extended  time.Time               // the suspects' leases
	passed    int                     // takes since a suspect had its turn
	choices   int                     // that were noted
	inbox

	forgetting sync.WaitGroup
}

// theirs is a message that was taken.
type theirs struct {
	msg      *nats.Msg
	leased   time.Time // when its lease began, by the worker's clock
	fence    uint64
	provider string // that was chosen
	choice   uint64 // the number of the message of the engine's stream that says so

	confirmed bool // the server knows that it is done
}

func isForeign(entry string) bool { return strings.Contains(entry, "/") }

// openForeign looks at a stream of others, and makes the consumer if it is missing.
func (s *Engine) openForeign(ctx context.Context, queue string, at Foreign) (*foreign, error) {
	stream, err := s.js.Stream(ctx, at.Stream)
	if err != nil {
		return nil, fmt.Errorf("jetstream: stream %s of the queue %q: %w", at.Stream, queue, err)
	}
	cfg := stream.CachedInfo().Config
	if at.Subject == "" && len(cfg.Subjects) == 1 && checkSubject(cfg.Subjects[0]) == nil {
		at.Subject = cfg.Subjects[0]
	}
	f := &foreign{
		Foreign: at, s: s, queue: queue, lease: cmp.Or(at.AckWait, defaultAckWait), stays: cfg.Retention == jetstream.LimitsPolicy,
		asking: make(chan struct{}, 1), held: map[uint64]*theirs{}, givenBack: map[uint64]struct{}{}, suspects: map[uint64]store.Leased{}, inbox: newInbox(),
	}
	if at.Consumer == "" {
		return f, nil
	}
	f.consumer, err = s.js.Consumer(ctx, at.Stream, at.Consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) && !s.untouched {
		f.consumer, err = s.js.CreateConsumer(ctx, at.Stream, jetstream.ConsumerConfig{
			Durable: at.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: f.lease, MaxAckPending: maxAckPending,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("jetstream: consumer %s: %w", f.name(), err)
	}
	has := f.consumer.CachedInfo().Config
	f.pull = newPuller(s.js, at.Stream, at.Consumer, has).pull
	return f, f.fits(has)
}

const defaultAckWait = 30 * time.Second // the server's, and that of a queue

// fits says which setting of the consumer does not fit.
func (f *foreign) fits(cfg jetstream.ConsumerConfig) error {
	if cfg.AckWait > 0 {
		f.lease = cfg.AckWait
	}
	switch {
	case cfg.AckPolicy != jetstream.AckExplicitPolicy:
		return fmt.Errorf("jetstream: consumer %s: its AckPolicy is %v, must be explicit", f.name(), cfg.AckPolicy)
	case cfg.MaxDeliver > 0:
		return fmt.Errorf("jetstream: consumer %s: its MaxDeliver is %d: the server would drop messages that are not done (law D5)", f.name(), cfg.MaxDeliver)
	case len(cfg.BackOff) > 0:
		return fmt.Errorf("jetstream: consumer %s: it has a BackOff, which takes the place of AckWait", f.name())
	case cfg.HeadersOnly:
		return fmt.Errorf("jetstream: consumer %s: it is HeadersOnly: no message would have a payload", f.name())
	case cfg.DeliverSubject != "":
		return fmt.Errorf("jetstream: consumer %s: it has a DeliverSubject, must be a pull consumer", f.name())
	}
	return nil
}

func (f *foreign) name() string { return f.Stream + "/" + f.Consumer }

// take takes messages with up to about room bytes.
func (f *foreign) take(ctx context.Context, limit, room int, lease time.Duration) (taken []store.Leased, err error) {
	switch {
	case f.consumer == nil:
		return nil, guard.MarkPermanent(fmt.Errorf("jetstream: queue %q: the stream %s lacks a consumer (Foreign.Consumer): it is only written", f.queue, f.Stream))
	case lease > f.lease:
		return nil, guard.MarkPermanent(fmt.Errorf("jetstream: queue %q: a lease of %v is longer than the AckWait of the consumer %s, which is %v: see delivery.QueueConfig",
			f.queue, lease, f.name(), f.lease))
	}
	if f.turn() {
		if taken := f.alone(); len(taken) > 0 {
			f.keep(ctx)
			return taken, nil
		}
	}
	came, err := f.collect(ctx, limit, room)
	looks := make([]look, len(came))
	var again []int // what was noted of them is asked for, at once: their leases go on
	for i, m := range came {
		l := &looks[i]
		if l.at, l.err = m.Metadata(); l.err == nil && l.at.NumDelivered > 1 {
			again = append(again, i)
		}
	}
	parallel.Do(len(again), func(i int) {
		l := &looks[again[i]]
		l.provider, l.choice, l.err = f.chosen(ctx, l.at.Sequence.Stream)
	})
	for i, m := range came {
		if err = errors.Join(err, looks[i].err); looks[i].err != nil {
			continue // it comes again
		}
		if l, suspect := f.hold(m, &looks[i]); !suspect {
			taken = append(taken, l)
		}
	}
	if err != nil {
		return taken, f.failed(ctx, err)
	}
	if len(taken) == 0 {
		taken = f.alone()
	}
	if len(taken) == 0 {
		f.await()
	}
	f.keep(ctx)
	return taken, nil
}

// mostPassed takes may pass the suspects by: where there is always something else, they would wait for ever.
const mostPassed = 10

// turn reports whether it is a suspect's turn.
func (f *foreign) turn() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.suspects) == 0 {
		f.passed = 0
	}
	f.passed++
	return f.passed > mostPassed
}

// alone returns a message that may have killed its process: that with the fewest deliveries, since the one that kills has the most. It is
// alone, so that it takes no other one along (law D4); the others wait here, since a message that is given back has one delivery more. Of several
// the oldest is first, and after another death the newest, so that all have their turn before the one that kills.
func (f *foreign) alone() (taken []store.Leased) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.s.clock.Now()
	var best uint64
	for seq, l := range f.suspects {
		h := f.held[seq]
		mine := h != nil && h.fence == l.Lease.Fence
		switch {
		case !mine || now.Sub(h.leased) >= f.lease: // another worker may have it
			delete(f.suspects, seq)
			if mine {
				delete(f.held, seq)
			}
		case len(taken) == 0 || l.Lease.Fence < taken[0].Lease.Fence,
			l.Lease.Fence == taken[0].Lease.Fence && (seq < best) == (l.Lease.Fence%2 == 0):
			best, taken = seq, []store.Leased{l}
		}
	}
	delete(f.suspects, best)
	f.passed = 0
	return taken
}

// keep extends the leases of the suspects, now and then.
func (f *foreign) keep(ctx context.Context) {
	f.mu.Lock()
	now := f.s.clock.Now()
	var leases []store.Lease
	if now.Sub(f.extended) >= f.lease/3 {
		f.extended = now
		for _, l := range f.suspects {
			leases = append(leases, l.Lease)
		}
	}
	f.mu.Unlock()
	if err := f.stay(ctx, leases); err != nil && !storearg.IsLost(err) && ctx.Err() == nil {
		f.s.logger.Warn("weir: leases could not be extended", "queue", f.queue, "error", err)
	}
}

// failed returns the error for a consumer, which is permanent if it will not come back.
func (f *foreign) failed(ctx context.Context, err error) error {
	if errors.Is(err, nats.ErrNoResponders) { // also of a server that is not ready
		if _, gone := f.consumer.Info(ctx); errors.Is(gone, jetstream.ErrConsumerNotFound) || errors.Is(gone, jetstream.ErrStreamNotFound) {
			err = guard.MarkPermanent(gone)
		}
	}
	if errors.Is(err, jetstream.ErrConsumerDeleted) {
		err = guard.MarkPermanent(err)
	}
	return fmt.Errorf("jetstream: consumer %s: %w", f.name(), err)
}

// look is what is known of a message that has come.
type look struct {
	at       *nats.MsgMetadata
	provider string
	choice   uint64
	err      error
}

// hold notes a message, and returns it, unless it is a suspect: that waits until it can be alone. One that is in flight here has not killed
// this process, and is returned to join it (law D2).
func (f *foreign) hold(m arrival, known *look) (l store.Leased, suspect bool) {
	at := known.at
	seq := at.Sequence.Stream
	l = store.Leased{External: true, Lease: store.Lease{Queue: f.queue, Entry: f.Stream + "/" + strconv.FormatUint(seq, 10), Fence: at.NumDelivered}}
	l.Meta, l.Schema, l.Damage = headers.Read(m.Header, m.Subject, at.Stream, seq)
	l.Payload = m.Data
	h := &theirs{msg: m.Msg, leased: m.at, fence: at.NumDelivered, provider: known.provider, choice: known.choice}
	l.Meta.Provider = cmp.Or(h.provider, l.Meta.Provider)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, survived := f.givenBack[seq]; !survived {
		l.Lapses = int(min(at.NumDelivered, math.MaxInt32)) / 2 // deliveries that were given back by others are counted as well
	}
	_, waits := f.suspects[seq]
	if suspect = l.Lapses > 0 && (waits || f.held[seq] == nil); suspect {
		f.suspects[seq] = l
	}
	f.held[seq] = h
	return l, suspect
}

// noteGivenBack notes that this process gives a message back: it has not killed it. Called with mu held.
func (f *foreign) noteGivenBack(seq uint64) {
	if len(f.givenBack) == maxGivenBack {
		clear(f.givenBack)
	}
	f.givenBack[seq] = struct{}{}
}

// leasesOf returns the messages of leases that this process has; lost are the others. If it is to be before the end of a lease, one that has
// ended is lost: another worker may have the message, and may have set a delay, which must hold (laws D3, P1). Else the lease may also be that
// of an earlier delivery: the server acknowledges a message by its number (law D2).
func (f *foreign) leasesOf(leases []store.Lease, beforeEnd bool) (hs []*theirs, seqs []uint64, kept, lost []store.Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.s.clock.Now()
	for _, l := range leases {
		seq, err := strconv.ParseUint(l.Entry[strings.LastIndexByte(l.Entry, '/')+1:], 10, 64)
		h := f.held[seq]
		ended := beforeEnd && h != nil && (h.fence != l.Fence || now.Sub(h.leased) >= f.lease) // its acknowledgement still counts
		if err != nil || h == nil || h.fence < l.Fence || ended {
			lost = append(lost, l)
			continue
		}
		hs, seqs, kept = append(hs, h), append(seqs, seq), append(kept, l)
	}
	return hs, seqs, kept, lost
}

// answer sends an answer to each delivery, and waits until the server has confirmed them. It returns why it has not confirmed one.
func (f *foreign) answer(ctx context.Context, hs []*theirs, answer string) (rs []request, err error) {
	if len(hs) == 0 {
		return nil, nil
	}
	rs = make([]request, len(hs))
	for i, h := range hs {
		rs[i] = request{subject: h.msg.Reply, data: []byte(answer)}
	}
	select {
	case f.asking <- struct{}{}:
		defer func() { <-f.asking }()
	case <-ctx.Done():
		for i := range rs {
			rs[i].err = context.Cause(ctx) // not sent
		}
		return rs, fmt.Errorf("jetstream: consumer %s: %w", f.name(), context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, max(confirm/10, min(confirm, f.lease/3)))
	defer cancel()
	f.asker.send(f.s.js.Conn(), rs)
	f.asker.wait(ctx, rs)
	for i := range rs {
		if err == nil && rs[i].err != nil {
			err = fmt.Errorf("jetstream: consumer %s: %w", f.name(), rs[i].err)
		}
	}
	return rs, err
}

func (f *foreign) extend(ctx context.Context, leases []store.Lease) error {
	f.keep(ctx)
	return f.stay(ctx, leases)
}

func (f *foreign) stay(ctx context.Context, leases []store.Lease) error {
	hs, _, _, lost := f.leasesOf(leases, true)
	now := f.s.clock.Now()
	rs, err := f.answer(ctx, hs, "+WPI")
	f.mu.Lock()
	for i, h := range hs {
		if rs[i].err == nil {
			h.leased = now
		}
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return storearg.Lost(lost)
}

// done acknowledges messages, also after the end of their leases: what was made of them is safe.
func (f *foreign) done(ctx context.Context, leases []store.Lease) error {
	hs, seqs, _, lost := f.leasesOf(leases, false)
	if err := f.settle(ctx, hs, seqs, "+ACK"); err != nil {
		return err
	}
	return storearg.Lost(lost)
}

// settle answers deliveries for good, and forgets them.
func (f *foreign) settle(ctx context.Context, hs []*theirs, seqs []uint64, answer string) error {
	var open []*theirs // of a call before this one, some are confirmed
	for _, h := range hs {
		if !h.confirmed {
			open = append(open, h)
		}
	}
	rs, err := f.answer(ctx, open, answer)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, h := range open {
		h.confirmed = rs[i].err == nil
	}
	if err != nil {
		return err
	}
	for i, seq := range seqs {
		delete(f.held, seq) // also a later delivery
		delete(f.givenBack, seq)
		delete(f.suspects, seq)
		if choice := hs[i].choice; choice != 0 {
			f.forget(func(ctx context.Context) { _ = f.s.erase(ctx, choice) }) // else forgetChoices does it
		}
	}
	return nil
}

// forget calls f, which removes what is of no use. It ends with its requests; the engine waits for it.
func (f *foreign) forget(do func(ctx context.Context)) {
	f.forgetting.Go(func() {
		ctx, cancel := context.WithTimeout(f.s.life, confirm)
		defer cancel()
		do(ctx)
	})
}

// nack gives deliveries back. One that was sent and not confirmed is not sent again: it may be another worker's by then, and comes again
// after its lease at the latest.
func (f *foreign) nack(ctx context.Context, hs []*theirs, seqs []uint64, answer string) error {
	f.mu.Lock()
	for i, seq := range seqs { // it may come again before the answer
		f.noteGivenBack(seq)
		if f.held[seq] == hs[i] {
			delete(f.held, seq)
		}
	}
	f.mu.Unlock()
	rs, err := f.answer(ctx, hs, answer)
	if err == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, seq := range seqs {
		if rs[i].err != nil && !rs[i].sent && f.held[seq] == nil {
			f.held[seq] = hs[i]
		} else if rs[i].sent {
			rs[i].err = nil
		}
	}
	for i := range rs {
		if rs[i].err != nil {
			return err
		}
	}
	return nil
}

// release gives messages back. With a delay they go to the engine's stream, which keeps it to the nanosecond, and where they keep no place of
// MaxAckPending.
func (f *foreign) release(ctx context.Context, delay time.Duration, leases []store.Lease) error {
	hs, seqs, _, lost := f.leasesOf(leases, true)
	f.drop(lost)
	if delay <= 0 {
		if err := f.nack(ctx, hs, seqs, "-NAK"); err != nil {
			return err
		}
		return storearg.Lost(lost)
	}
	for i, h := range hs {
		settle, answer := f.settle, "+ACK"
		m, err := f.messageOf(h)
		if m.Delay = delay; err == nil {
			err = f.s.put(ctx, f.queue, m)
		}
		switch {
		case err == nil:
		case !errors.Is(err, message.ErrRefused):
			return err
		case delay >= forGood && f.stays: // it does not fit, and stays where it is
			answer = "+TERM"
		default:
			settle, answer = f.nack, `-NAK {"delay": `+strconv.FormatInt(int64(min(delay, math.MaxInt64-restartSlack)+restartSlack), 10)+"}"
		}
		if err := settle(ctx, hs[i:i+1], seqs[i:i+1], answer); err != nil {
			return err
		}
	}
	return storearg.Lost(lost)
}

// drop forgets messages whose leases are lost, and that are not acknowledged either.
func (f *foreign) drop(lost []store.Lease) {
	hs, seqs, kept, _ := f.leasesOf(lost, false)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, seq := range seqs {
		if hs[i].fence == kept[i].Fence && f.held[seq] == hs[i] {
			delete(f.held, seq)
		}
	}
}

// messageOf returns a message that was taken, as a store keeps it: the bytes and headers that came.
func (f *foreign) messageOf(h *theirs) (m store.Message, err error) {
	at, err := h.msg.Metadata()
	if err != nil {
		return m, err
	}
	m.Meta, m.Schema, _ = headers.Read(h.msg.Header, h.msg.Subject, at.Stream, at.Sequence.Stream) // damaged headers were rejected
	m.Meta.Provider = cmp.Or(h.provider, m.Meta.Provider)
	m.Payload = h.msg.Data
	return m, nil
}

// move puts messages into queues, and then acknowledges the ones in their place: a crash in between doubles, and does not lose (law D1).
func (f *foreign) move(ctx context.Context, moves []store.Move, lost map[store.Lease]bool) error {
	leases := make([]store.Lease, len(moves))
	for i, m := range moves {
		leases[i] = m.Lease
	}
	hs, seqs, kept, gone := f.leasesOf(leases, false)
	for _, l := range gone {
		lost[l] = true
	}
	byQueue := map[string][]store.Message{}
	for _, m := range moves {
		if !lost[m.Lease] {
			byQueue[m.Queue] = append(byQueue[m.Queue], m.Message)
		}
	}
	for queue, ms := range byQueue {
		if err := f.s.put(ctx, queue, ms...); err != nil {
			return err
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return f.settle(ctx, hs, seqs, "+ACK")
}

// count returns how many messages wait in the stream, or are in flight.
func (f *foreign) count(ctx context.Context) (int, error) {
	if f.consumer == nil {
		return 0, nil
	}
	info, err := f.consumer.Info(ctx)
	if err != nil {
		return 0, f.failed(ctx, err)
	}
	return int(min(info.NumPending, math.MaxInt32)) + info.NumAckPending, nil //nolint:gosec // bounded
}

func (f *foreign) choiceSubject(seq uint64) string {
	return f.s.prefix + choiceToken + token(f.queue) + "." + strconv.FormatUint(seq, 10)
}

// choose notes a provider in the engine's stream: the message itself cannot be changed. It takes the place of the choice that is known here, so
// that one that comes late, over a connection that was broken, does not take the place of a later worker's.
func (f *foreign) choose(ctx context.Context, provider string, l store.Lease) error {
	var behind uint64
	for again := false; ; again = true {
		hs, seqs, _, lost := f.leasesOf([]store.Lease{l}, true)
		if len(lost) > 0 {
			return storearg.Lost(lost)
		}
		if !again {
			f.mu.Lock()
			behind = hs[0].choice
			f.mu.Unlock()
		}
		seq, err := f.noteChoice(ctx, seqs[0], provider, behind)
		if errors.Is(err, errChanged) && !again { // an answer was lost, a worker before has come late, or a later one has the message
			if _, behind, err = f.chosen(ctx, seqs[0]); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		hs[0].provider, hs[0].choice = provider, seq
		if f.choices++; f.choices%choicesLooked == 1 {
			f.forget(f.forgetChoices)
		}
		return nil
	}
}

// noteChoice publishes a choice directly behind another one, or returns errChanged.
func (f *foreign) noteChoice(ctx context.Context, of uint64, provider string, behind uint64) (seq uint64, err error) {
	ack, err := f.s.js.PublishMsg(ctx, &nats.Msg{Subject: f.choiceSubject(of), Data: []byte(provider), Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(behind, 10)},
		jetstream.ExpectedStreamHeader:      {f.s.name},
	}})
	if err != nil {
		return 0, f.s.published(ctx, err)
	}
	return ack.Sequence, nil
}

// choicesLooked is after how many choices forgetChoices is called.
const choicesLooked = 1000

// forgetChoices removes what was noted of messages that are done: their workers died before they could (law W3). What is up to the floor of
// the acknowledgements is not delivered any more.
func (f *foreign) forgetChoices(ctx context.Context) {
	consumer, err := f.consumer.Info(ctx)
	if err != nil {
		return // the next one does it
	}
	noted, err := f.s.stream.Info(ctx, jetstream.WithSubjectFilter(f.s.prefix+choiceToken+token(f.queue)+".*"))
	if err != nil {
		return
	}
	for subject := range noted.State.Subjects {
		seq, err := strconv.ParseUint(identityOf(subject), 10, 64)
		if err != nil || seq > consumer.AckFloor.Stream {
			continue
		}
		if at, err := f.s.lastSeq(ctx, subject); err == nil && at != 0 {
			_ = f.s.erase(ctx, at)
		}
	}
}

// chosen returns what was noted of a message.
func (f *foreign) chosen(ctx context.Context, seq uint64) (provider string, choice uint64, _ error) {
	m, err := f.s.last(ctx, f.choiceSubject(seq))
	if m == nil {
		return "", 0, err
	}
	return string(m.Data), m.Sequence, nil
}
