package exactlyoncetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/internal/oncewire"
)

// Setup is a database for a test.
type Setup[TX any] struct {
	// Open opens the records for another server. The test closes them.
	Open func() exactlyonce.Store[TX]
	// Begin begins a user's transaction. It may wait for another one to end.
	Begin func(ctx context.Context) (Transaction[TX], error)
	// Add is an effect: it adds 1 to a counter as part of tx. Each request uses a new
	// name.
	Add func(ctx context.Context, tx TX, name string) error
	// Count returns the committed value of a counter.
	Count func(ctx context.Context, name string) (int, error)
	// Again reports whether a transaction that failed with err may be repeated unchanged,
	// for example after a serialization failure. nil means never.
	Again func(err error) bool
}

// Transaction is a user's transaction.
type Transaction[TX any] struct {
	TX       TX
	Commit   func(ctx context.Context) error
	Rollback func(ctx context.Context) error
}

// RunStore checks the rules of [exactlyonce.Store], in a subtest each. newSetup returns a
// new, empty database. Its records must take the time from c.
func RunStore[TX any](t *testing.T, newSetup func(t *testing.T, c clock.Clock) Setup[TX]) {
	t.Helper()
	for _, rule := range []struct {
		name  string
		check func(b *bench[TX])
	}{
		{"a stored answer is found", (*bench[TX]).found},
		{"what is rolled back is new", (*bench[TX]).rolledBack},
		{"what is not committed is not seen", (*bench[TX]).uncommitted},
		{"requests differ in scope, client, sequence number and step", (*bench[TX]).identity},
		{"other content is refused", (*bench[TX]).mismatch},
		{"invalid requests are refused", (*bench[TX]).invalid},
		{"one of two attempts stores its answer", (*bench[TX]).twoAttempts},
		{"the second attempt goes on when the first is rolled back", (*bench[TX]).firstRolledBack},
		{"marks make stale", (*bench[TX]).marks},
		{"a put holds up the mark above it", (*bench[TX]).putBesideMark},
		{"old answers are collected", (*bench[TX]).oldAnswers},
		{"an answer that is asked for is kept", (*bench[TX]).askedFor},
		{"silent clients are collected", (*bench[TX]).silentClients},
		{"a client whose request runs is not silent", (*bench[TX]).longRequest},
		{"many are collected by several", (*bench[TX]).manyCollected},
		{"each request has one effect", (*bench[TX]).oneEffect},
	} {
		t.Run(rule.name, func(t *testing.T) {
			mock := clock.NewMock()
			mock.Set(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
			rule.check(&bench[TX]{T: t, setup: newSetup(t, mock), clock: mock})
		})
	}
}

type bench[TX any] struct {
	*testing.T
	setup Setup[TX]
	clock *clock.Mock
}

var answer = []byte("an answer\x00\xff")

func request(client exactlyonce.Client, sequence int64) exactlyonce.Request {
	return exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: sequence, Attempt: 1}, Scope: "scope"}
}

func (b *bench[TX]) begin() (Transaction[TX], error) {
	tx, err := b.setup.Begin(b.Context())
	if err == nil {
		b.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	}
	return tx, err
}

func (b *bench[TX]) again(err error) bool { return b.setup.Again != nil && b.setup.Again(err) }

// put stores an answer in a separate transaction, repeated after conflicts.
func (b *bench[TX]) put(s exactlyonce.Store[TX], req exactlyonce.Request, answer []byte) error {
	for {
		err := b.putOnce(s, req, answer)
		if !b.again(err) {
			return err
		}
	}
}

func (b *bench[TX]) putOnce(s exactlyonce.Store[TX], req exactlyonce.Request, answer []byte) error {
	tx, err := b.begin()
	if err != nil {
		return err
	}
	if err := s.Put(b.Context(), tx.TX, req, answer); err != nil {
		return errors.Join(err, tx.Rollback(b.Context()))
	}
	return tx.Commit(b.Context())
}

// Results of StateOf.
const (
	isNew     = "new"
	completed = "completed"
	stale     = "stale"
)

// StateOf names the result of [exactlyonce.Records.Find]: "new", "completed" or "stale",
// which is not an error here.
func StateOf(answer []byte, found bool, err error) (string, []byte, error) {
	switch {
	case errors.Is(err, exactlyonce.ErrStale):
		return stale, nil, nil
	case found:
		return completed, answer, err
	}
	return isNew, answer, err
}

func markOf(scope string, c exactlyonce.Client, first int64) exactlyonce.Request {
	return exactlyonce.Request{Scope: scope, ID: exactlyonce.ID{Client: c, First: first}}
}

func (b *bench[TX]) state(s exactlyonce.Store[TX], want string, req exactlyonce.Request) (answer []byte) {
	b.Helper()
	got, answer, err := StateOf(s.Find(b.Context(), req))
	require.NoError(b, err)
	require.Equal(b, want, got, "%v", req)
	if want != completed {
		assert.Nil(b, answer)
	}
	return answer
}

func (b *bench[TX]) found() {
	s, other := b.setup.Open(), b.setup.Open()
	c := exactlyonce.NewClient()
	for i, want := range [][]byte{answer, {}, nil, bytes.Repeat([]byte("x"), 100_000)} {
		req := request(c, int64(i+1))
		b.state(s, isNew, req)
		given := bytes.Clone(want)
		require.NoError(b, b.put(s, req, given))
		clear(given) // the buffer belongs to the caller
		for _, s := range []exactlyonce.Store[TX]{s, other, b.setup.Open()} {
			req.Attempt++
			assert.True(b, bytes.Equal(want, b.state(s, completed, req)))
		}
		assert.ErrorIs(b, b.put(other, req, []byte("another")), exactlyonce.ErrInProgress)
		assert.True(b, bytes.Equal(want, b.state(other, completed, req)))
	}
	b.state(s, isNew, request(c, oncewire.MaxSequence))
	require.NoError(b, b.put(s, request(c, oncewire.MaxSequence), answer))
	b.state(s, completed, request(c, oncewire.MaxSequence))
}

func (b *bench[TX]) rolledBack() {
	s := b.setup.Open()
	req := request(exactlyonce.NewClient(), 1)
	for range 2 {
		tx, err := b.begin()
		require.NoError(b, err)
		require.NoError(b, b.setup.Add(b.Context(), tx.TX, "gone"))
		require.NoError(b, s.Put(b.Context(), tx.TX, req, answer))
		require.NoError(b, tx.Rollback(b.Context()))
		b.state(s, isNew, req)
	}
	require.NoError(b, b.put(s, req, answer))
	n, err := b.setup.Count(b.Context(), "gone")
	require.NoError(b, err)
	assert.Zero(b, n)
}

func (b *bench[TX]) uncommitted() {
	s, other := b.setup.Open(), b.setup.Open()
	req := request(exactlyonce.NewClient(), 1)
	tx, err := b.begin()
	require.NoError(b, err)
	require.NoError(b, s.Put(b.Context(), tx.TX, req, answer))
	b.state(other, isNew, req) // and it must not wait
	assert.ErrorIs(b, s.Put(b.Context(), tx.TX, req, answer), exactlyonce.ErrInProgress)
	require.NoError(b, tx.Rollback(b.Context()))
	require.NoError(b, b.put(s, req, answer))
	b.state(other, completed, req)
}

func (b *bench[TX]) identity() {
	s := b.setup.Open()
	first := request(exactlyonce.NewClient(), 7)
	require.NoError(b, b.put(s, first, answer))
	scope := first
	client := first
	sequence := first
	step := first
	scope.Scope = "another"
	client.Client = exactlyonce.NewClient()
	sequence.Sequence++
	step.Step = "charge"
	for i, req := range []exactlyonce.Request{scope, client, sequence, step} {
		b.state(s, isNew, req)
		require.NoError(b, b.put(s, req, []byte(strconv.Itoa(i))))
		assert.Equal(b, strconv.Itoa(i), string(b.state(s, completed, req)))
	}
	require.NoError(b, s.Acknowledge(b.Context(), []exactlyonce.Request{markOf("another", first.Client, 100)}))
	b.state(s, stale, scope)
	assert.Equal(b, answer, b.state(s, completed, first))
	b.state(s, completed, client)
}

func (b *bench[TX]) mismatch() {
	s := b.setup.Open()
	req := request(exactlyonce.NewClient(), 1)
	req.Fingerprint = [32]byte{1}
	require.NoError(b, b.put(s, req, answer))
	other, without := req, req
	other.Fingerprint = [32]byte{2}
	without.Fingerprint = [32]byte{}
	_, _, err := s.Find(b.Context(), other)
	assert.ErrorIs(b, err, exactlyonce.ErrMismatch)
	assert.ErrorIs(b, b.put(s, other, answer), exactlyonce.ErrMismatch)
	b.state(s, completed, without)
	assert.ErrorIs(b, b.put(s, without, answer), exactlyonce.ErrInProgress)

	b.clock.Add(time.Hour)
	_, _, err = s.Collect(b.Context(), b.clock.Now(), time.Time{})
	require.NoError(b, err)
	_, _, err = s.Find(b.Context(), other)
	assert.ErrorIs(b, err, exactlyonce.ErrMismatch)
	b.state(s, stale, req)

	bare := request(req.Client, 2)
	require.NoError(b, b.put(s, bare, answer))
	bare.Fingerprint = [32]byte{3}
	b.state(s, completed, bare)
}

func (b *bench[TX]) invalid() {
	s := b.setup.Open()
	for _, req := range []exactlyonce.Request{
		{}, request(exactlyonce.Client{}, 1), request(exactlyonce.NewClient(), 0), request(exactlyonce.NewClient(), oncewire.MaxSequence+1),
	} {
		_, _, err := s.Find(b.Context(), req)
		assert.ErrorIs(b, err, exactlyonce.ErrInvalid)
		assert.ErrorIs(b, b.put(s, req, answer), exactlyonce.ErrInvalid)
	}
	assert.ErrorIs(b, s.Acknowledge(b.Context(), []exactlyonce.Request{{Scope: "scope", ID: exactlyonce.ID{First: 1}}}), exactlyonce.ErrInvalid)
	assert.NoError(b, s.Acknowledge(b.Context(), nil))
}

func (b *bench[TX]) attempt(s exactlyonce.Store[TX], req exactlyonce.Request, effect string, answer []byte) error {
	tx, err := b.begin()
	if err != nil {
		return err
	}
	err = b.setup.Add(b.Context(), tx.TX, effect)
	if err == nil {
		err = s.Put(b.Context(), tx.TX, req, answer)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(b.Context()))
	}
	return tx.Commit(b.Context())
}

func (b *bench[TX]) twoAttempts() {
	servers := [2]exactlyonce.Store[TX]{b.setup.Open(), b.setup.Open()}
	for round := range int64(10) {
		req := request(exactlyonce.NewClient(), round+1)
		errs := make(chan error, 2)
		tx, err := b.begin()
		require.NoError(b, err)
		require.NoError(b, servers[0].Put(b.Context(), tx.TX, req, answer))
		go func() { errs <- b.put(servers[1], req, []byte("another")) }()
		if round%2 == 0 {
			select {
			case err := <-errs:
				require.NoError(b, err, "the second did not wait")
			case <-time.After(20 * time.Millisecond): // usually it waits
			}
		}
		require.NoError(b, tx.Commit(b.Context()))
		err = <-errs
		if b.again(err) {
			err = b.put(servers[1], req, []byte("another"))
		}
		assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
		assert.Equal(b, answer, b.state(servers[1], completed, req))
	}
}

func (b *bench[TX]) firstRolledBack() {
	servers := [2]exactlyonce.Store[TX]{b.setup.Open(), b.setup.Open()}
	req := request(exactlyonce.NewClient(), 1)
	tx, err := b.begin()
	require.NoError(b, err)
	require.NoError(b, servers[0].Put(b.Context(), tx.TX, req, answer))
	errs := make(chan error, 1)
	go func() { errs <- b.put(servers[1], req, []byte("another")) }()
	require.NoError(b, tx.Rollback(b.Context()))
	require.NoError(b, <-errs)
	assert.Equal(b, "another", string(b.state(servers[0], completed, req)))
}

func (b *bench[TX]) marks() {
	s, other := b.setup.Open(), b.setup.Open()
	c, unseen := exactlyonce.NewClient(), exactlyonce.NewClient()
	for _, sequence := range []int64{1, 2, 4, 9} {
		require.NoError(b, b.put(s, request(c, sequence), answer))
	}
	mark := func(c exactlyonce.Client, before int64) {
		b.Helper()
		require.NoError(b, s.Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", c, before)}))
	}
	mark(c, 5)
	mark(unseen, 5)
	mark(c, 3) // a mark is never lowered
	for range 2 {
		for sequence, want := range map[int64]string{
			1: stale, 2: stale, 3: stale, 4: stale,
			5: isNew, 8: isNew, 9: completed,
		} {
			b.state(other, want, request(c, sequence))
			if want == stale {
				assert.ErrorIs(b, b.put(s, request(c, sequence), answer), exactlyonce.ErrStale)
				b.state(other, want, request(unseen, sequence))
				assert.ErrorIs(b, b.put(s, request(unseen, sequence), answer), exactlyonce.ErrStale)
			}
		}
		other = b.setup.Open() // after a restart, too
	}
	require.NoError(b, b.put(s, request(unseen, 5), answer))

	var many []exactlyonce.Request
	for i := range 100 {
		many = append(many, markOf("many", exactlyonce.NewClient(), int64(i)), markOf("scope", c, int64(i)))
	}
	require.NoError(b, s.Acknowledge(b.Context(), many))
	b.state(s, stale, request(c, 98))
	b.state(s, isNew, request(c, 99))
}

// A transaction that has put below a mark blocks the mark, or sees it. So a request whose
// record was removed never runs again.
func (b *bench[TX]) putBesideMark() {
	s, other := b.setup.Open(), b.setup.Open()
	for range 5 {
		c := exactlyonce.NewClient()
		require.NoError(b, b.put(s, request(c, 1), answer))
		tx, err := b.begin()
		require.NoError(b, err)
		require.NoError(b, s.Put(b.Context(), tx.TX, request(c, 2), answer))
		marked := make(chan error, 1)
		go func() {
			marked <- other.Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", c, 10)})
		}()
		select {
		case err := <-marked:
			require.NoError(b, err, "the mark did not wait")
		case <-time.After(10 * time.Millisecond): // it waits
		}
		require.NoError(b, tx.Commit(b.Context()))
		if <-marked != nil { // it may give up after a while
			require.NoError(b, other.Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", c, 10)}))
		}
		for sequence := range int64(9) {
			b.state(s, stale, request(c, sequence+1))
			assert.ErrorIs(b, b.put(s, request(c, sequence+1), answer), exactlyonce.ErrStale)
		}
	}
}

func (b *bench[TX]) collect(s exactlyonce.Store[TX], answers, clients time.Time, wantAnswers, wantClients int) {
	b.Helper()
	gotAnswers, gotClients, err := s.Collect(b.Context(), answers, clients)
	require.NoError(b, err)
	assert.Equal(b, wantAnswers, gotAnswers, "answers")
	assert.Equal(b, wantClients, gotClients, "clients")
}

func (b *bench[TX]) oldAnswers() {
	s := b.setup.Open()
	c := exactlyonce.NewClient()
	require.NoError(b, b.put(s, request(c, 5), answer))
	require.NoError(b, b.put(s, request(c, 1), nil))
	b.clock.Add(time.Minute)
	cut := b.clock.Now()
	require.NoError(b, b.put(s, request(c, 3), answer))
	b.collect(s, cut, time.Time{}, 2, 0)
	b.collect(s, cut, time.Time{}, 0, 0)
	for _, s := range []exactlyonce.Store[TX]{s, b.setup.Open()} {
		b.state(s, stale, request(c, 5))
		b.state(s, stale, request(c, 1))
		b.state(s, completed, request(c, 3))
		for _, never := range []int64{2, 4, 6} { // a slow request stays new, and does not block others
			b.state(s, isNew, request(c, never))
		}
		assert.ErrorIs(b, b.put(s, request(c, 5), answer), exactlyonce.ErrStale)
	}
	require.NoError(b, b.put(s, request(c, 4), answer))
}

func (b *bench[TX]) askedFor() {
	s := b.setup.Open()
	toucher, ok := s.(exactlyonce.Toucher)
	if !ok {
		b.Skip("it has no method Touch")
	}
	results := server.NewResults(server.Config{Records: s, Clock: b.clock})
	defer func() { assert.NoError(b, results.Close(context.Background())) }()
	asked := request(exactlyonce.NewClient(), 1)
	other := request(exactlyonce.NewClient(), 1)
	step := request(exactlyonce.NewClient(), 1)
	step.Step = "charge"
	for _, req := range []exactlyonce.Request{asked, other, step} {
		_, _, err := results.Do(b.Context(), req, func(context.Context) ([]byte, error) { return answer, b.put(s, req, answer) })
		require.NoError(b, err)
	}
	for range 20 {
		b.clock.Add(time.Minute)
		asked.Attempt++
		got, _, err := results.Do(b.Context(), asked, func(context.Context) ([]byte, error) { return nil, errors.New("it runs again") })
		require.NoError(b, err)
		require.Equal(b, answer, got)
		require.NoError(b, toucher.Touch(b.Context(), []exactlyonce.Request{step, request(exactlyonce.NewClient(), 1)}))
		require.NoError(b, results.Collect(b.Context()))
	}
	for _, s := range []exactlyonce.Store[TX]{s, b.setup.Open()} {
		b.state(s, completed, asked)
		b.state(s, completed, step)
		b.state(s, stale, other)
	}
	require.NoError(b, toucher.Touch(b.Context(), []exactlyonce.Request{other}))
	b.state(s, stale, other)
}

func (b *bench[TX]) silentClients() {
	s := b.setup.Open()
	clients := map[string]exactlyonce.Client{}
	for _, name := range []string{"silent", "mark of old", "record", "mark", "heard", "answer collected"} {
		clients[name] = exactlyonce.NewClient()
		if name != "mark of old" {
			require.NoError(b, b.put(s, request(clients[name], 1), answer))
		}
	}
	mark := func(name string) {
		require.NoError(b, s.Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", clients[name], 2)}))
	}
	mark("mark of old")
	b.clock.Add(10 * time.Minute)
	cut := b.clock.Now()
	require.NoError(b, b.put(s, request(clients["record"], 2), answer))
	require.NoError(b, b.put(s, request(clients["answer collected"], 2), answer))
	mark("mark")
	require.NoError(b, s.Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", clients["heard"], 0)}))
	b.clock.Add(time.Minute)
	// The answers of the last minute are removed, but the activity of their clients stays
	// recorded.
	require.NoError(b, b.put(s, request(clients["record"], 3), answer))
	b.collect(s, b.clock.Now(), time.Time{}, 6, 0)
	b.collect(s, cut, cut, 0, 0)
	b.collect(s, cut, cut, 0, 0)
	for range 2 {
		// Requests of a silent client are stale, but new ones run.
		b.state(s, stale, request(clients["silent"], 1))
		assert.ErrorIs(b, b.put(s, request(clients["silent"], 1), answer), exactlyonce.ErrStale)
		b.state(s, stale, request(clients["mark of old"], 1))
		for _, name := range []string{"silent", "mark of old"} {
			b.state(s, isNew, request(clients[name], 2))
			b.state(s, isNew, request(clients[name], oncewire.MaxSequence))
		}
		for _, name := range []string{"record", "mark", "heard", "answer collected"} {
			b.state(s, isNew, request(clients[name], 4))
			b.state(s, stale, request(clients[name], 1))
		}
		another := request(clients["heard"], 1)
		another.Step = "another"
		b.state(s, isNew, another)
		s = b.setup.Open()
	}
	b.state(s, isNew, request(exactlyonce.NewClient(), 1))
	require.NoError(b, b.put(s, request(clients["silent"], 2), answer))
	assert.Equal(b, answer, b.state(s, completed, request(clients["silent"], 2)))

	// After 24 times that silence only active clients remain.
	b.clock.Add(30 * time.Minute)
	mark("mark")
	b.collect(s, b.clock.Now().Add(-time.Minute), b.clock.Now().Add(-time.Minute), 2, 5)
	b.state(s, stale, request(clients["mark"], 1))
	b.collect(s, b.clock.Now().Add(-time.Minute), b.clock.Now().Add(-time.Minute), 0, 0)
	b.clock.Add(30 * time.Minute)
	b.collect(s, b.clock.Now().Add(-time.Minute), b.clock.Now().Add(-time.Minute), 0, 1)
}

// longRequest runs a request for longer than ClientSilence, and another for 24 times as
// long, on two servers that collect. Meanwhile a later request of the client is answered.
// The long requests store their answers, and the answered request is not executed again
// (law X1).
func (b *bench[TX]) longRequest() {
	const silence = 10 * time.Minute
	type replica struct {
		records exactlyonce.Store[TX]
		results *server.Results
	}
	newReplica := func() replica {
		records := b.setup.Open()
		results := server.NewResults(server.Config{Clock: b.clock, Records: records, AnswerAge: silence / 2, ClientSilence: silence})
		b.Cleanup(func() { require.NoError(b, results.Close(context.Background())) })
		return replica{records, results}
	}
	first, second := newReplica(), newReplica()
	run := func(d time.Duration) {
		for range int(d / (silence / 8)) {
			b.clock.Add(silence / 8)
			require.NoError(b, first.results.Collect(b.Context()))
			require.NoError(b, second.results.Collect(b.Context()))
		}
	}
	client := exactlyonce.NewClient()
	begin := func(sequence int64) *server.Call {
		call, err := first.results.Track(b.Context(), request(client, sequence))
		require.NoError(b, err)
		require.True(b, call.IsNew())
		return call
	}
	end := func(call *server.Call, sequence int64) {
		require.NoError(b, b.put(first.records, request(client, sequence), answer), "request %d", sequence)
		require.NoError(b, call.Complete(answer))
	}

	slow, slowest := begin(1), begin(2)
	begun := b.clock.Now()
	end(begin(3), 3)
	run(silence * 3 / 2)
	end(slow, 1)
	run(silence * 24)
	late := request(client, 3)
	late.Attempt, late.Age = 2, b.clock.Now().Sub(begun).Truncate(time.Second)
	for _, s := range []replica{first, second} {
		call, err := s.results.Track(b.Context(), late)
		if err == nil {
			defer call.Fail(nil)
			require.False(b, call.IsNew(), "the request would be executed a second time")
			continue
		}
		require.ErrorIs(b, err, exactlyonce.ErrStale)
	}
	end(slowest, 2)
}

func (b *bench[TX]) manyCollected() {
	s, other := b.setup.Open(), b.setup.Open()
	const clients, each = 2, 520
	for i := range clients {
		c := exactlyonce.NewClient()
		tx, err := b.begin()
		require.NoError(b, err)
		for sequence := range int64(each) {
			req := request(c, sequence/2+1)
			req.Step = strconv.FormatInt(sequence%2, 10)
			require.NoError(b, s.Put(b.Context(), tx.TX, req, answer))
		}
		require.NoError(b, tx.Commit(b.Context()))
		if i == 0 {
			require.NoError(b, s.Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", c, each)}))
			b.state(s, stale, request(c, 1))
		}
	}
	b.clock.Add(time.Hour)
	var answers, silent atomic.Int64
	collect := func(s exactlyonce.Store[TX]) {
		a, c, err := s.Collect(b.Context(), b.clock.Now(), b.clock.Now())
		assert.NoError(b, err)
		answers.Add(int64(a))
		silent.Add(int64(c))
	}
	var wg sync.WaitGroup
	for _, s := range []exactlyonce.Store[TX]{s, other} {
		wg.Go(func() { collect(s) })
	}
	wg.Wait()
	b.clock.Add(time.Second) // then a client whose rows the other server had is due again
	collect(s)               // rows that each may have left to the other
	assert.EqualValues(b, (clients-1)*each, answers.Load())
	assert.EqualValues(b, clients, silent.Load())
	b.collect(s, b.clock.Now(), b.clock.Now(), 0, 0)
}

// oneEffect runs attempts of the same requests at three servers, some rolled back, during
// marks and collections. Law X1.
func (b *bench[TX]) oneEffect() {
	const requests, attempts, workers = 40, 4, 6
	client := exactlyonce.NewClient()
	servers := []exactlyonce.Store[TX]{b.setup.Open(), b.setup.Open(), b.setup.Open()}
	var done, stop atomic.Int64
	committed := make([]atomic.Int32, requests)
	var wg, beside sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for range requests * attempts / workers {
				low := done.Load()
				n := low + random.Int64N(max(1, min(12, requests-low)))
				req := request(client, n+1)
				req.First = 1
				err := b.attempt(servers[random.IntN(len(servers))], req, b.counter(n), answer)
				switch {
				case err == nil:
					committed[n].Add(1)
				case errors.Is(err, exactlyonce.ErrInProgress), errors.Is(err, exactlyonce.ErrStale):
				case b.again(err):
				default:
					assert.NoError(b, err)
				}
			}
		})
	}
	beside.Go(func() {
		for ; stop.Load() == 0; b.clock.Add(time.Second) {
			mark := done.Add(1)
			if mark > requests-6 {
				done.Store(requests - 6)
				mark = requests - 6
			}
			err := servers[0].Acknowledge(b.Context(), []exactlyonce.Request{markOf("scope", client, mark)})
			assert.NoError(b, err)
			_, _, err = servers[1].Collect(b.Context(), b.clock.Now().Add(-2*time.Second), time.Time{})
			assert.NoError(b, err)
		}
	})
	wg.Wait()
	stop.Store(1)
	beside.Wait()
	var effects int
	for n := range int64(requests) {
		count, err := b.setup.Count(b.Context(), b.counter(n))
		require.NoError(b, err)
		assert.LessOrEqual(b, count, 1, "request %d", n)
		assert.EqualValues(b, committed[n].Load(), count, "request %d", n)
		effects += count
	}
	assert.NotZero(b, effects)
}

func (b *bench[TX]) counter(n int64) string { return fmt.Sprintf("effect %d", n) }
