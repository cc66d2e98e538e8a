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

// ErrNoID is the class of errors of requests that cannot get an id ([NextID]) and were
// not sent.
var ErrNoID = errors.New("exactlyonce: the request lacks an id")

const defaultWindow = 1 << 16

// Config are the settings of a [Tracker]. The zero value has the defaults.
type Config struct {
	// Window limits the incomplete numbers, which take about 100 bytes each. 0 means
	// 65,536. With checkpoints, which release the numbers, it should cover the elements
	// of about two intervals; a full window requests a checkpoint.
	Window int

	// Refuse lets elements in while the window is full. Their requests fail with
	// [exactlyonce.ErrFull]; each new attempt asks for a number again. Without Refuse the
	// tracker holds the input back ([Tracker.TryAdmit]). It cannot be combined with
	// checkpoints, which need numbers in the order of the elements.
	Refuse bool

	// Name distinguishes this tracker's requests from others for the same messages, such
	// as "charges". Messages with an id (message.Message) need it, except with
	// checkpoints. It must not change while messages are waiting.
	Name string

	// Secret, of at least 16 bytes, prevents others with the same principal at the server
	// from computing the ids of messages. It is required with Name. Trackers with the
	// same name must have the same secret, which must not change while messages are
	// waiting.
	Secret []byte

	// Clock measures [exactlyonce.ID.Age]. Default: the real clock.
	Clock clock.Clock
}

// Tracker numbers elements, so that each of their requests has the same id in every
// attempt. It is an observer and a gate of an operator (asyncop.WithObserver):
//
//	TryAdmit ─▶ Accepted ─▶ AttemptStarted ─▶ … ─▶ AttemptStarted ─▶ Ended
//	 room?      a number     requests under its context have ids      the number is released
//
// [Transport] sends the ids, and [NextID] is for other clients.
//
// With checkpoints (asyncop.WithCheckpoints) a restored element keeps its number. A
// number is released when a checkpoint without its element is complete. After a fresh
// start requests wait for the first checkpoint, which the tracker requests at once. The
// input must have the same order after a restart: directly from a source, or through
// steps that keep the order. A program that takes its own checkpoints calls
// [Tracker.Restore] and [Tracker.Snapshot].
//
// A slow request delays the first incomplete number, but not the release of other
// numbers.
//
// # Messages
//
// A message may be redelivered to another worker, whose tracker has another client. So
// the ids of its requests derive from Config.Name, Config.Secret and the id of the
// message, and are the same in each visit. Each message is its own client, whose numbers
// begin anew when it returns from the dead letters. It does not count in the window. It
// lacks a first incomplete number, so the server keeps its answer for the configured
// ages, and bounds the remembered messages (server.Config).
//
// One tracker may serve several operators, unless it takes part in checkpoints. It is
// safe for concurrent use.
type Tracker struct {
	config Config
	start  time.Time

	// first is the lowest incomplete number. Written under mu, read by senders.
	first atomic.Int64

	mu         sync.Mutex
	client     exactlyonce.Client // guarded by mu; changes only in Restore
	next       int64              // guarded by mu; number of the next element
	head, tail *element           // guarded by mu; the incomplete numbers in ascending order
	incomplete int                // guarded by mu; count of the list
	waiting    []func()           // guarded by mu; functions passed to Notify

	saved states // guarded by mu
}

type element struct {
	tracker *Tracker

	attempts atomic.Int64       // attempt numbers used
	sent     atomic.Int64       // time of the first request, since tracker.start; 0 before it
	ended    atomic.Bool        // further attempts are refused; written under tracker.mu
	lost     bool               // its earlier number is unknown; written once
	client   exactlyonce.Client // of a message; zero for the tracker's client; written once

	// Guarded by tracker.mu.
	number     int64 // 0 without a number
	refused    error // why it has no number
	prev, next *element
	inDoubt    inDoubt // requests that may have taken effect
	step       string  // step of the request in doubt, if inDoubt is oneRequest
}

type attemptIDs struct {
	element *element
	client  exactlyonce.Client
	number  int64       // of the element
	refused error       // why the element has no number
	unnamed atomic.Bool // a request without a step has been made
}

type (
	attemptKey struct{}
	stepKey    struct{}
	sendingKey struct{}
)

// minSecret is the shortest secret in bytes, as long as a client id.
const minSecret = 16

// NewTracker returns a tracker with a new identity. It panics if the window is negative,
// the secret is too short, or only one of name and secret is set.
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
// identity in the state.
func (t *Tracker) Client() exactlyonce.Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client
}

// ---- The gate

// TryAdmit reports whether another element fits into the window. It reserves nothing: N
// operators may exceed the window by N elements.
//
// With checkpoints elements wait until a checkpoint with the identity is complete or
// restored: otherwise a restart would not know the numbers of sent requests (law X1).
// TryAdmit requests a checkpoint that would make room.
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

// Notify calls f once, as soon as TryAdmit may return true, perhaps at once. f must not
// block. It may be called from any goroutine, and TryAdmit may return false again by
// then.
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

// unlockAndNotify releases mu. It calls the waiting functions if there is room, otherwise
// it requests a checkpoint.
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

// Accepted gives an element the lowest unused number. A restored element keeps its number
// (law X1): see [Tracker.Restored]. The returned context must be the parent of the
// contexts of the element's attempts.
func (t *Tracker) Accepted(ctx context.Context, _ any, restored bool) context.Context {
	e := &element{tracker: t}
	meta, _ := message.MetaFromContext(ctx)
	if meta.UnsafeToRepeat {
		e.inDoubt = severalRequests // resume may know more
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

// AttemptStarted returns the context of an attempt of the element of ctx, which must
// derive from the result of Accepted. n counts attempts from 1. Without an element it
// returns ctx.
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
	for made := e.attempts.Load(); made < int64(n)-1; made = e.attempts.Load() { // skip the attempts made before a restart
		e.attempts.CompareAndSwap(made, int64(n)-1)
	}
	return context.WithValue(ctx, attemptKey{}, a)
}

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

// Ended releases the number of the element of ctx, with checkpoints when the next
// checkpoint is complete. Further requests are refused, and a second call is ignored.
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

// releaseLocked removes a number from the list, even if lower numbers are incomplete (law
// X3).
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

// WithStep returns a context for one of several requests that a function makes for its
// element, such as "reserve" or "charge". The name is part of the id, so it must be the
// same in every attempt, and in the next version of the program. It has at most 64
// letters, digits and ._:- characters.
//
// The server executes only one request with the same step, so a function that repeats or
// hedges a request itself has to name it.
func WithStep(ctx context.Context, step string) context.Context {
	a, _ := ctx.Value(attemptKey{}).(*attemptIDs)
	return context.WithValue(ctx, stepKey{}, named{a, step})
}

// NextID returns the id for the next sending of a request under ctx, the context of an
// element's attempt. Each call takes a new attempt number. [Transport] calls it. Clients
// of other protocols call it once for each sending, and report the request under
// [predicates.WithDeduplicated].
//
// Errors are of class [ErrNoID]:
//   - ctx does not belong to an element of a tracker;
//   - ctx belongs to a call for many elements: use the context of the element
//     (asyncop.MemberContexts);
//   - ctx belongs to an element but not to an attempt, as in a timeout handler, and lacks
//     a step;
//   - the attempt has made another request without a step: name both by [WithStep];
//   - the element has ended, or its tracker lacks a complete checkpoint.
//
// Or they are [exactlyonce.ErrFull] if the tracker has refused the element, or
// [exactlyonce.ErrInvalid] if the step's name is invalid.
func NextID(ctx context.Context) (exactlyonce.ID, error) {
	_, id, err := begin(ctx, 0)
	return id, err
}

// named is a step of one attempt, not of elements inside it.
type named struct {
	ids  *attemptIDs
	step string
}

// outgoing is a request in any protocol.
type outgoing struct {
	ctx  context.Context //nolint:containedctx // of the function, for reports
	ids  *attemptIDs
	step string
}

// requestIn returns the request made under ctx. A redirect makes it another request.
func requestIn(ctx context.Context, redirects int) (outgoing, error) {
	if r, ok := ctx.Value(sendingKey{}).(outgoing); ok {
		return r, nil // an outer Transport has begun the request
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

// redirected returns the step of a request after redirects, with the hash of a too long
// step.
func redirected(step string, redirects int) string {
	suffix := ":redirect" + strconv.Itoa(redirects)
	if len(step) <= oncewire.MaxStep && len(step)+len(suffix) > oncewire.MaxStep {
		hash := sha256.Sum256([]byte(step))
		step = hex.EncodeToString(hash[:16])
	}
	return step + suffix
}

// isOfMany reports whether ctx belongs to a call for many elements whose attempts differ
// from a. a may then belong to an element around the operator.
func isOfMany(ctx context.Context, a *attemptIDs) bool {
	members, _ := ctx.Value(ctxkey.Members{}).([]context.Context)
	for _, m := range members {
		if of, _ := m.Value(attemptKey{}).(*attemptIDs); of != a {
			return true
		}
	}
	return false
}

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
	if id.First > id.Sequence { // the element has ended meanwhile
		return exactlyonce.ID{}, fmt.Errorf("%w: its element %d has ended", ErrNoID, a.number)
	}
	return id, id.Validate()
}

// age returns the time since the first request of e, 0 for that, rounded up to seconds.
func (e *element) age() time.Duration {
	now := int64(e.tracker.config.Clock.Since(e.tracker.start))
	if e.sent.CompareAndSwap(0, now|1) {
		return 0
	}
	return max(0, time.Duration(now-e.sent.Load())+time.Second-1).Truncate(time.Second)
}

func (e *element) sentAt(at time.Time) {
	if !at.IsZero() {
		e.sent.Store(int64(at.Sub(e.tracker.start)) | 1)
	}
}
