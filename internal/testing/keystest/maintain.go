//go:build unix

package keystest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
)

// Only finished requests are removed, after their retention.
func (b *bench) reap() {
	broken := errors.New("broken")
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "done"))
	require.NoError(b, err)
	p.call = func(string) error { return broken }
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.ErrorIs(b, err, broken)
	expect := func(removed, unfinished int) {
		b.Helper()
		gotRemoved, gotUnfinished, err := b.keys.Reap(b.Context())
		require.NoError(b, err)
		assert.Equal(b, removed, gotRemoved)
		assert.Equal(b, unfinished, gotUnfinished)
	}
	b.clock.Add(24*time.Hour - time.Second)
	expect(0, 0)
	p.call = nil
	_, err = o.Do(b.Context(), request("a", "young"))
	require.NoError(b, err)
	b.clock.Add(time.Second)
	expect(1, 1)
	expect(0, 1)
	counts, err := b.keys.Count(b.Context())
	require.NoError(b, err)
	assert.Equal(b, keys.Counts{Records: 2, Unfinished: 1, Overdue: 1, Users: 1}, counts)
	assert.Equal(b, 3, count(b.T, b.db, "SELECT count(*) FROM weir_key_steps"), "the steps of the removed one are gone")
	other := request("a", "done")
	other.Body = []byte("the key is that of a new request")
	_, err = o.Do(b.Context(), other)
	require.NoError(b, err)
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{4, 5, 4}, p.runs())
	counts, err = b.keys.Count(b.Context())
	require.NoError(b, err)
	assert.Equal(b, keys.Counts{Records: 3, Users: 1}, counts)
	expect(0, 0)
	assert.Equal(b, [3]int{4, 5, 4}, p.runs())
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{4, 5, 4}, p.runs(), "the client that asks again gets the answer, however late it came")
	b.clock.Add(24 * time.Hour)
	expect(3, 0)
	assert.EqualValues(b, 4, b.keys.Stats().Collected)
}

func (b *bench) list() {
	broken := errors.New("broken")
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	began := b.clock.Now().UTC()
	_, err := o.Do(b.Context(), request("a", "done"))
	require.NoError(b, err)
	b.clock.Add(time.Minute)
	p.call = func(string) error { return broken }
	_, err = o.Do(b.Context(), request("b", "unfinished"))
	require.ErrorIs(b, err, broken)
	expect := func(f keys.Filter, want ...string) (last keys.Info) {
		b.Helper()
		var got []string
		for i, err := range b.keys.List(b.Context(), f) {
			require.NoError(b, err)
			got, last = append(got, i.Key), i
		}
		assert.Equal(b, want, got)
		return last
	}
	i := expect(keys.Filter{}, "unfinished")
	assert.NotEmpty(b, i.ID)
	assert.Equal(b, keys.Info{
		ID: i.ID, User: "b", Key: "unfinished", Operation: "op", Point: "first", Runs: 1,
		Created: began.Add(time.Minute), LastRun: began.Add(time.Minute), Expires: began.Add(24*time.Hour + time.Minute),
	}, i)
	expect(keys.Filter{Finished: true}, "done", "unfinished")
	i = expect(keys.Filter{Finished: true, User: "a"}, "done")
	assert.True(b, i.Finished)
	assert.Equal(b, http.StatusCreated, i.Status)
	expect(keys.Filter{Key: "unfinished", User: "b", Operation: "op"}, "unfinished")
	expect(keys.Filter{Finished: true, User: "a", Key: "unfinished"})
	expect(keys.Filter{Operation: "another"})
	for _, err := range b.keys.List(b.Context(), keys.Filter{Finished: true}) {
		require.NoError(b, err)
		break
	}
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for _, err := range b.keys.List(ctx, keys.Filter{}) {
		assert.ErrorIs(b, err, context.Canceled)
	}
}

// A request that its client does not repeat is completed once.
func (b *bench) complete() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	_, err = b.keys.Operation("unknown elsewhere", p.handle).Do(b.Context(), request("a", "unknown"))
	require.ErrorIs(b, err, broken)
	expect := func(k *keys.Keys, completed, failed int) {
		b.Helper()
		gotCompleted, gotFailed, err := k.Complete(b.Context())
		require.NoError(b, err)
		assert.Equal(b, completed, gotCompleted)
		assert.Equal(b, failed, gotFailed)
	}
	b.clock.Add(5*time.Minute - time.Second)
	expect(b.keys, 0, 0)
	b.clock.Add(time.Second)
	expect(b.keys, 0, 2) // still broken
	expect(b.keys, 0, 0) // they wait again
	b.clock.Add(10*time.Minute - time.Second)
	expect(b.keys, 0, 0) // longer each time
	b.clock.Add(time.Second)
	p.call = func(string) error { panic("boom") }
	expect(b.keys, 0, 2)
	b.clock.Add(15 * time.Minute)
	p.call = nil
	other := b.server()
	other.Operation("op", p.handle)
	var wg sync.WaitGroup
	var completed, failed atomic.Int32
	for range 3 {
		wg.Go(func() {
			c, f, err := other.Complete(b.Context())
			assert.NoError(b, err)
			completed.Add(int32(c))
			failed.Add(int32(f))
		})
	}
	wg.Wait()
	assert.EqualValues(b, 1, completed.Load())
	assert.EqualValues(b, 3, failed.Load(), "an operation that is not there is reported")
	assert.Equal(b, 1, b.effects("third"))
	response, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusCreated, response.Status)
	expect(b.keys, 1, 0)
	assert.Equal(b, 2, p.callKeys())
}

// A request that cannot be completed is retried a limited number of times, and stays
// until a person ends it.
func (b *bench) givesUp() {
	broken := errors.New("broken")
	calls := 0
	p := &phases{call: func(string) error { calls++; return broken }}
	_, err := b.keys.Operation("op", p.handle).Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	for range 7 * 24 * 12 {
		b.clock.Add(5 * time.Minute)
		_, _, err := b.keys.Complete(b.Context())
		require.NoError(b, err)
	}
	assert.Greater(b, calls, 15)
	assert.Less(b, calls, 30)
	_, unfinished, err := b.keys.Reap(b.Context())
	require.NoError(b, err)
	assert.Equal(b, 1, unfinished)
}

// A person can end an unfinished request with a response that states the reason. A run of
// that request can no longer commit.
func (b *bench) end() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	b.clock.Add(48 * time.Hour)
	var id string
	for i, err := range b.keys.List(b.Context(), keys.Filter{}) {
		require.NoError(b, err)
		id = i.ID
	}
	refunded, err := keys.JSON(http.StatusConflict, "refunded by hand")
	require.NoError(b, err)
	p.call = func(string) error { return b.keys.End(b.Context(), id, refunded) }
	response, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, refunded, response)
	assert.Zero(b, b.effects("third"))
	p.call = nil
	b.clock.Add(23 * time.Hour)
	_, unfinished, err := b.keys.Reap(b.Context())
	require.NoError(b, err)
	assert.Zero(b, unfinished)
	again, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, refunded, again)
	assert.ErrorIs(b, b.keys.End(b.Context(), id, refunded), exactlyonce.ErrInvalid, "it has ended")
	assert.ErrorIs(b, b.keys.End(b.Context(), "another", refunded), exactlyonce.ErrInvalid)
	assert.ErrorContains(b, b.keys.End(b.Context(), id, exactlyonce.Response{}), "status 0")
	b.clock.Add(2 * time.Hour)
	removed, _, err := b.keys.Reap(b.Context())
	require.NoError(b, err)
	assert.Equal(b, 1, removed)
}

// Maintain completes and reaps requests until its context ends.
func (b *bench) maintain() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	b.clock.Add(25 * time.Hour)
	ctx, cancel := context.WithCancelCause(b.Context())
	stop := errors.New("stop")
	result := make(chan error)
	go func() { result <- b.keys.Maintain(ctx, time.Hour) }()
	none := func() bool { return count(b.T, b.db, "SELECT count(*) FROM weir_keys") == 0 }
	require.Eventually(b, none, time.Minute, time.Millisecond)
	_, err = o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	require.Eventually(b, func() bool {
		b.clock.Add(time.Hour)
		return none()
	}, time.Minute, time.Millisecond)
	cancel(stop)
	assert.ErrorIs(b, <-result, stop)
}
