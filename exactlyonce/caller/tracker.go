package caller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/message"
)

// ErrNoID is the class of errors of requests that cannot be given an id: see [NextID].
// The request was not sent.
var ErrNoID = errors.New("exactlyonce: the request lacks an id")

const defaultWindow = 1 << 16

// Config are the settings of a [Tracker]. The zero value has the defaults.
type Config struct {
	// Window bounds the incomplete numbers; 0 stands for 65,536. Each takes about 100
	// bytes. With checkpoints it should cover the elements of about two intervals, since
	// their numbers are released by checkpoints: when it is full, the tracker asks for a
	// checkpoint.
	Window int

	// Refuse lets elements in while the window is full. Their requests fail with
	// [exactlyonce.ErrFull]; each new attempt asks again for a number. Without it the
	// tracker holds the input back, as far as it is asked ([Tracker.TryAdmit]). Not with
	// checkpoints, which need the numbers in the order of the elements.
	Refuse bool

	// Name distinguishes the requests of this tracker from requests of others for the
	// same messages, such as "charges". It is required where elements are messages with
	// an id (message.Message), except with checkpoints: see [Tracker]. It must not change
	// as long as messages wait.
	Name string

	// Secret keeps others who are the same principal at the server from computing the ids
	// of messages. It is required with Name, and has at least 16 bytes. All trackers of
	// that name must have the same secret, which must not change as long as messages
	// wait.
	Secret []byte

	// Clock measures how long ago a request was first sent ([exactlyonce.ID.Age]).
	// Default: the real clock.
	Clock clock.Clock
}

// Tracker numbers elements, so that each of their requests has the same id in every
// attempt. It is an observer and a gate of an operator (asyncop.WithObserver):
//
//	TryAdmit ─▶ Accepted ─▶ AttemptStarted ─▶ … ─▶ AttemptStarted ─▶ Ended
//	 room?      a number     requests under its context have ids      the number is released
//
// A program without an operator calls these methods itself. [Transport] sends the ids,
// and [NextID] is for other clients.
//
// In an operator that takes part in checkpoints (asyncop.WithCheckpoints), the tracker's
// state goes into them: it is an observe.CheckpointedObserver. A restored element keeps
// its number, and a number is released when a checkpoint that no longer holds its element
// is complete. Requests are not sent before the first checkpoint of a fresh start is
// complete; the tracker asks for it at once. The input must have the same order after a
// restart: it comes straight from a source, or through steps that keep the order. A
// program that takes checkpoints of its own calls [Tracker.Restore] and
// [Tracker.Snapshot] itself.
//
// The tracker remembers incomplete numbers only, and each by itself: a slow request keeps
// its own number, and keeps the first incomplete number where it is, but does not affect
// others.
//
// # Messages
//
// A message may be redelivered: after a crash, from a layer of a ladder, on another
// worker, whose tracker has another client. So its requests get an id that is made of
// Name and Secret in Config and the id of the message: it is the same in each visit.
// Trackers with the same name give the same ids to the same message. Each message is a
// client of its own, whose numbers begin anew when it returns from the dead letters. It
// does not count in the window, and lacks a first incomplete number, so the server keeps
// the answer for its configured ages, and bounds how many messages it remembers
// (server.Config).
//
// One tracker may serve several operators, unless it takes part in checkpoints. It is
// safe for concurrent use.
type Tracker struct {
	config Config
	start  time.Time

	// first is the lowest incomplete number. Written under mu, read by those who send.
	first atomic.Int64

	mu         sync.Mutex
	client     exactlyonce.Client // guarded by mu; it changes in Restore only
	next       int64              // guarded by mu: the number that the next element gets
	head, tail *element           // guarded by mu: the incomplete numbers in ascending order
	incomplete int                // guarded by mu: how many they are
	waiting    []func()           // guarded by mu: what Notify was given

	saved states // guarded by mu
}

// element is one number. The list keeps it until it is released.
type element struct {
	tracker *Tracker

	attempts atomic.Int64       // numbers of attempts taken
	sent     atomic.Int64       // when its first request was sent, since tracker.start; 0: none was
	ended    atomic.Bool        // no attempt follows; written under tracker.mu
	lost     bool               // it had a number that is not known; written once
	client   exactlyonce.Client // of a message, which is a client of its own; else zero: that of the tracker; written once

	// Guarded by tracker.mu.
	number     int64 // 0: it has none
	refused    error // why it has none
	prev, next *element
	inDoubt    inDoubt // its requests that may have taken effect
	step       string  // of the request in doubt, if inDoubt is oneRequest
}

// attemptIDs gives ids to the requests of one attempt of an element.
type attemptIDs struct {
	element *element
	client  exactlyonce.Client
	number  int64       // of the element
	refused error       // why it has no number
	unnamed atomic.Bool // a request without a step has been made
}

type (
	attemptKey struct{}
	stepKey    struct{}
	sendingKey struct{}
)

// minSecret is the shortest secret, in bytes: an id has as many.
const minSecret = 16

// NewTracker returns a tracker with an identity of its own. It panics if the window is
// negative, the secret is too short, or there is a name without a secret or the other way
// round.
func NewTracker(config Config) *Tracker {
	switch {
	case config.Window < 0:
		panic(fmt.Sprintf("caller: NewTracker: negative window: %d", config.Window))
	case config.Name != "" && len(config.Secret) < minSecret:
		panic(fmt.Sprintf("caller: NewTracker: Name is %q, and Secret has %d bytes, fewer than %d", config.Name, len(config.Secret), minSecret))
	case config.Name == "" && len(config.Secret) > 0:
		panic("caller: NewTracker: there is a Secret without a Name")
	}
	config.Window = cmp.Or(config.Window, defaultWindow)
	if config.Clock == nil {
		config.Clock = clock.New()
	}
	return &Tracker{config: config, start: config.Clock.Now(), client: exactlyonce.NewClient(), next: 1}
}

// Client returns the identity of the tracker. [Tracker.Restore] replaces it by the
// state's identity.
func (t *Tracker) Client() exactlyonce.Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client
}

// ---- The gate

// TryAdmit reports whether another element fits into the window. It reserves nothing: N
// operators that share a tracker may exceed the window by N elements.
//
// With checkpoints elements wait until a checkpoint that holds the identity is complete,
// or the tracker was restored from it: a restart would not know the numbers of requests
// that were sent before (law X1). If a checkpoint would make room, TryAdmit asks for it.
func (t *Tracker) TryAdmit() bool {
	t.mu.Lock()
	admitted, request := t.config.Refuse || t.hasNumberLocked(), t.requestLocked()
	t.mu.Unlock()
	if request != nil {
		request()
	}
	return admitted
}

func (t *Tracker) hasNumberLocked() bool {
	return t.incomplete < t.config.Window && (t.saved.durable || !t.saved.used)
}

// Notify calls f once, as soon as TryAdmit may return true: at once if it would now. f
// must not block. It may be called from any goroutine, and TryAdmit may return false
// again by then.
func (t *Tracker) Notify(f func()) {
	t.mu.Lock()
	if !t.config.Refuse && !t.hasNumberLocked() {
		t.waiting = append(t.waiting, f)
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	f()
}

// unlockAndNotify releases mu and calls those who wait for room, if there is some, or
// asks for a checkpoint that makes some.
func (t *Tracker) unlockAndNotify() {
	var calls []func()
	switch {
	case len(t.waiting) == 0:
	case t.hasNumberLocked():
		calls, t.waiting = t.waiting, nil
	default:
		if request := t.requestLocked(); request != nil {
			calls = []func(){request}
		}
	}
	t.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// ---- The observer

var (
	_ observe.CheckpointedObserver = (*Tracker)(nil)
	_ observe.Gate                 = (*Tracker)(nil)
)

// Accepted gives an element its number, the lowest that was not used yet. The context
// that it returns is to be the parent of the contexts of the element's attempts.
//
// A restored element keeps its number (law X1): see [Tracker.Restored].
//
// A message with an id gets the id of the message: see [Tracker].
func (t *Tracker) Accepted(ctx context.Context, _ any, restored bool) context.Context {
	e := &element{tracker: t}
	meta, _ := message.MetaFromContext(ctx)
	if meta.UnsafeToRepeat {
		e.inDoubt = severalRequests // resume may know better
	}
	switch {
	case meta.ID == "":
	case t.config.Name != "":
		e.client, e.number = clientOf(t.config.Secret, t.config.Name, meta.ID), int64(meta.Merges)+1
		e.resume(meta)
		return context.WithValue(ctx, ctxkey.Tracked{}, e)
	case !t.hasCheckpoints():
		e.lost = true
		e.refused = fmt.Errorf("%w: its element is message %q, which may be redelivered under another number (law X1): "+
			"set Config.Name of the tracker", ErrNoID, meta.ID)
		return context.WithValue(ctx, ctxkey.Tracked{}, e)
	}
	if restored {
		e.lost = true
		e.refused = fmt.Errorf("%w: its element was restored from a checkpoint that does not hold its number", ErrNoID)
		return context.WithValue(ctx, ctxkey.Tracked{}, e)
	}
	t.mu.Lock()
	t.numberLocked(e)
	t.mu.Unlock()
	return context.WithValue(ctx, ctxkey.Tracked{}, e)
}

// numberLocked gives e a number, or a reason to have none.
func (t *Tracker) numberLocked(e *element) {
	switch {
	case t.config.Refuse && t.incomplete >= t.config.Window:
		e.refused = fmt.Errorf("%w: the window of the tracker has %d incomplete numbers", exactlyonce.ErrFull, t.incomplete)
	case t.saved.used && !t.saved.durable:
		e.refused = fmt.Errorf("%w: no checkpoint that holds the client's identity is complete: "+
			"ask TryAdmit before an element is accepted", ErrNoID)
	default:
		e.number, e.refused = t.next, nil
		t.next++
		t.appendLocked(e)
	}
}

// appendLocked adds the highest number to the incomplete ones.
func (t *Tracker) appendLocked(e *element) {
	if t.tail == nil {
		t.head = e
		t.first.Store(e.number)
	} else {
		e.prev, t.tail.next = t.tail, e
	}
	t.tail = e
	t.incomplete++
}

// AttemptStarted returns the context of an attempt of the element that ctx belongs to,
// whose parent Accepted has returned. n is the number of the attempt, from 1. Without an
// element it returns ctx.
func (t *Tracker) AttemptStarted(ctx context.Context, n int) context.Context {
	e := t.elementIn(ctx)
	if e == nil {
		return ctx
	}
	t.mu.Lock()
	if e.number == 0 && t.config.Refuse && !e.lost && !e.ended.Load() {
		t.numberLocked(e)
	}
	t.mu.Unlock()
	a := t.idsOf(e)
	for made := e.attempts.Load(); made < int64(n)-1; made = e.attempts.Load() { // those before a restart
		e.attempts.CompareAndSwap(made, int64(n)-1)
	}
	return context.WithValue(ctx, attemptKey{}, a)
}

// idsOf returns the ids of a new attempt of e, with the present number of e.
func (t *Tracker) idsOf(e *element) *attemptIDs {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &attemptIDs{element: e, client: t.client, number: e.number, refused: e.refused}
	if !e.client.IsZero() {
		a.client = e.client
	}
	return a
}

// AttemptEnded is empty: a tracker ignores attempts.
func (t *Tracker) AttemptEnded(context.Context, observe.Outcome) {}

// Ended releases the number of the element that ctx belongs to: none of its requests is
// sent from now on. With checkpoints the number is kept until the next is complete. A
// second call is ignored.
func (t *Tracker) Ended(ctx context.Context, _ observe.Ending) {
	e := t.elementIn(ctx)
	if e == nil {
		return
	}
	t.mu.Lock()
	switch {
	case e.ended.Swap(true) || e.number == 0 || !e.client.IsZero():
	case t.saved.used:
		t.saved.ended = append(t.saved.ended, e)
	default:
		t.releaseLocked(e)
	}
	t.unlockAndNotify()
}

// releaseLocked removes a number from the incomplete ones. Law X3: whatever is below it.
func (t *Tracker) releaseLocked(e *element) {
	if e.prev == nil {
		t.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		t.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	t.incomplete--
	if t.head != nil {
		t.first.Store(t.head.number)
	}
}

func (t *Tracker) elementIn(ctx context.Context) *element {
	e, _ := ctx.Value(ctxkey.Tracked{}).(*element)
	if e == nil || e.tracker != t {
		return nil
	}
	return e
}

// ---- Requests

// WithStep returns a context for a request among several that a function makes for its
// element. The name is part of the id, so it must be the same in every attempt, even in
// the next version of the program: "reserve", "charge". It has at most 64 letters, digits
// and ._:- characters.
//
// Requests with the same step are the same request: the server executes a single request.
// A function that repeats or hedges a request itself therefore has to name it.
func WithStep(ctx context.Context, step string) context.Context {
	a, _ := ctx.Value(attemptKey{}).(*attemptIDs)
	return context.WithValue(ctx, stepKey{}, named{a, step})
}

// NextID returns the id for the next sending of a request under ctx, the context of an
// element's attempt. Each call takes an attempt number of its own. [Transport] calls it;
// clients of other protocols do it themselves, once for each sending, and report the
// request under [predicates.WithDeduplicated].
//
// Errors are of class [ErrNoID]:
//   - ctx does not belong to an element of a tracker;
//   - ctx belongs to a call for many elements: use the context of the element (asyncop.MemberContexts);
//   - ctx belongs to an element but not to an attempt, such as the context of a timeout handler, and it lacks a step;
//   - the attempt has made another request without a step: name both by [WithStep];
//   - the element has ended, or its tracker lacks a complete checkpoint.
//
// Or they are [exactlyonce.ErrFull], if the tracker has refused the element, and
// [exactlyonce.ErrInvalid], if the step's name is invalid.
func NextID(ctx context.Context) (exactlyonce.ID, error) {
	_, id, err := begin(ctx, 0)
	return id, err
}

// named is a step of an attempt. One of another attempt, such as that of an element
// around this one, does not count.
type named struct {
	ids  *attemptIDs
	step string
}

// outgoing is a request, whatever sends it.
type outgoing struct {
	ctx  context.Context //nolint:containedctx // of the function, for reports
	ids  *attemptIDs
	step string
}

// requestIn returns the request that is made under ctx. Each redirect makes another
// request of it.
func requestIn(ctx context.Context, redirects int) (outgoing, error) {
	if r, ok := ctx.Value(sendingKey{}).(outgoing); ok {
		return r, nil // a sending of one that an outer Transport has begun
	}
	a, _ := ctx.Value(attemptKey{}).(*attemptIDs)
	if isOfMany(ctx, a) {
		return outgoing{}, fmt.Errorf("%w: its context belongs to a call for many elements, each of which has an id: "+
			"use asyncop.MemberContexts", ErrNoID)
	}
	step := ""
	if n, ok := ctx.Value(stepKey{}).(named); ok && n.ids == a {
		step = n.step
	}
	if a == nil {
		e, _ := ctx.Value(ctxkey.Tracked{}).(*element)
		switch {
		case e == nil:
			return outgoing{}, fmt.Errorf("%w: its context does not belong to an element of a Tracker", ErrNoID)
		case step == "":
			return outgoing{}, fmt.Errorf("%w: its context does not belong to an attempt of its element: name it by WithStep", ErrNoID)
		}
		a = e.tracker.idsOf(e)
	}
	if redirects > 0 {
		return outgoing{ctx, a, redirected(step, redirects)}, nil
	}
	if step == "" && a.unnamed.Swap(true) {
		return outgoing{}, fmt.Errorf("%w: it is the second request without a step in an attempt of element %d: "+
			"name each by WithStep, or this one would get the answer of the other", ErrNoID, a.number)
	}
	return outgoing{ctx, a, step}, nil
}

// redirected returns the step of a request after redirects. If that is too long, the hash
// of the step stands for the step.
func redirected(step string, redirects int) string {
	suffix := ":redirect" + strconv.Itoa(redirects)
	if len(step) <= oncewire.MaxStep && len(step)+len(suffix) > oncewire.MaxStep {
		hash := sha256.Sum256([]byte(step))
		step = hex.EncodeToString(hash[:16])
	}
	return step + suffix
}

// isOfMany reports whether ctx is that of a call for many elements whose attempts are not
// a, which may belong to an element around the operator.
func isOfMany(ctx context.Context, a *attemptIDs) bool {
	members, _ := ctx.Value(ctxkey.Members{}).([]context.Context)
	for _, m := range members {
		if of, _ := m.Value(attemptKey{}).(*attemptIDs); of != a {
			return true
		}
	}
	return false
}

// next returns the id of the next sending of r.
func (r outgoing) next() (exactlyonce.ID, error) {
	a, e := r.ids, r.ids.element
	switch {
	case a.refused != nil:
		return exactlyonce.ID{}, a.refused
	case e.ended.Load():
		return exactlyonce.ID{}, fmt.Errorf("%w: its element %d has ended", ErrNoID, a.number)
	}
	e.noteAsked(r.step)
	id := exactlyonce.ID{Client: a.client, Sequence: a.number, Step: r.step, Attempt: int(e.attempts.Add(1)), Age: e.age()}
	if e.client.IsZero() {
		id.First = e.tracker.first.Load()
	}
	if id.First > id.Sequence { // the element has ended meanwhile, and its number is released
		return exactlyonce.ID{}, fmt.Errorf("%w: its element %d has ended", ErrNoID, a.number)
	}
	return id, id.Validate()
}

// age returns how long ago the first request of e was sent, rounded up to seconds. In the
// first sending it is 0.
func (e *element) age() time.Duration {
	now := int64(e.tracker.config.Clock.Since(e.tracker.start))
	if e.sent.CompareAndSwap(0, now|1) {
		return 0
	}
	return max(0, time.Duration(now-e.sent.Load())+time.Second-1).Truncate(time.Second)
}

// sentAt notes that a request of e was sent at a time, which may have been in another
// process.
func (e *element) sentAt(at time.Time) {
	if !at.IsZero() {
		e.sent.Store(int64(at.Sub(e.tracker.start)) | 1)
	}
}
