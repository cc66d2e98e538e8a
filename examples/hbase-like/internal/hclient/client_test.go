package hclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/store"
	"github.com/weirflow/weir/examples/hbase-like/internal/wire"
)

// patience bounds each wait of a test.
const patience = 20 * time.Second

func row(key string) store.Row {
	return store.Row{Key: key, Cells: []wire.Cell{{Column: "info:name", Value: "name of " + key}}}
}

func startStore(t *testing.T, cfg store.Config) *store.Cluster {
	t.Helper()
	c, err := store.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func newClient(t *testing.T, meta string) *Client {
	t.Helper()
	c := New(meta)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

type answer struct {
	Result
	err error
}

// get starts a Get. The channel has room for two answers, to detect a second one.
func get(ctx context.Context, c *Client, key string) <-chan answer {
	ch := make(chan answer, 2)
	c.Get(ctx, key, func(r Result, err error) { ch <- answer{r, err} })
	return ch
}

func await(t *testing.T, ch <-chan answer) answer {
	t.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		return answer{}
	}
}

func getNow(t *testing.T, c *Client, key string) answer {
	t.Helper()
	return await(t, get(t.Context(), c, key))
}

// getAgain repeats a Get until it succeeds, as a user of the client would.
func getAgain(t *testing.T, c *Client, key string) (r Result, errs []error) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		a := getNow(t, c, key)
		if a.err == nil {
			return a.Result, errs
		}
		errs = append(errs, a.err)
	}
	t.Fatalf("no success, last error: %v", errs[len(errs)-1])
	return Result{}, nil
}

func TestGet(t *testing.T) {
	s := startStore(t, store.Config{Servers: 3, Splits: []string{"C", "M"}})
	s.Load(row("ATL"), row("DTW"), row("SFO"))
	c := newClient(t, s.MetaAddr())

	for _, key := range []string{"ATL", "DTW", "SFO", "ATL"} {
		a := getNow(t, c, key)
		require.NoError(t, a.err)
		assert.False(t, a.Empty())
		assert.Equal(t, key, a.Row)
		assert.Equal(t, "name of "+key, a.Value("info:name"))
		assert.Empty(t, a.Value("info:no such column"))
	}
	missing := getNow(t, c, "AAA")
	require.NoError(t, missing.err, "a missing row is no error")
	assert.True(t, missing.Empty())

	assert.Equal(t, Stats{Gets: 5, Locates: 3, Dials: 4}, c.Stats(), "one connection a server, one look-up a region")
}

func TestClient_ManyGetsShareConnections(t *testing.T) {
	s := startStore(t, store.Config{Servers: 3, Splits: []string{"ROW0500", "ROW1000"}, MaxLatency: 5 * time.Millisecond})
	const rows = 1500
	for i := range rows {
		s.Load(row(fmt.Sprintf("ROW%04d", i)))
	}
	c := newClient(t, s.MetaAddr())
	var all sync.WaitGroup
	for i := range rows {
		key := fmt.Sprintf("ROW%04d", i)
		all.Go(func() {
			a := await(t, get(t.Context(), c, key))
			assert.NoError(t, a.err)
			assert.Equal(t, "name of "+key, a.Value("info:name"))
		})
	}
	all.Wait()
	st := c.Stats()
	assert.Equal(t, rows, st.Gets)
	assert.Equal(t, 4, st.Dials)
	assert.LessOrEqual(t, st.Locates, 3, "Gets that wait for a look-up share it")
}

func TestMovedRegionIsLookedUpAgain(t *testing.T) {
	s := startStore(t, store.Config{Servers: 2, Faults: store.Faults{Transition: 10 * time.Millisecond}})
	s.Load(row("ATL"))
	c := newClient(t, s.MetaAddr())
	require.NoError(t, getNow(t, c, "ATL").err)
	before := s.Regions()[0]
	require.NoError(t, s.MoveRegion(before.Name, 1))

	a := getNow(t, c, "ATL")
	var moved *NotServingRegionError
	require.ErrorAs(t, a.err, &moved)
	assert.Equal(t, NotServingRegionError{Server: before.Server, Region: before.Name, Row: "ATL"}, *moved)
	assert.Contains(t, a.err.Error(), before.Server)

	r, errs := getAgain(t, c, "ATL")
	assert.False(t, r.Empty())
	for _, err := range errs { // for a while the meta server still returned the old server
		assert.ErrorAs(t, err, &moved)
	}
	assert.Equal(t, 1+len(errs), c.Stats().NotServing)
	assert.Equal(t, 2+len(errs), c.Stats().Locates, "once at first, once for each refusal but the last")
}

func TestDroppedConnectionIsReplaced(t *testing.T) {
	s := startStore(t, store.Config{Servers: 1, MinLatency: time.Hour, MaxLatency: time.Hour})
	c := newClient(t, scriptedMeta(t, s.Regions()[0]))
	var waiting []<-chan answer
	for range 10 {
		waiting = append(waiting, get(t.Context(), c, "ATL"))
	}
	require.Eventually(t, func() bool { return s.Stats().Gets == 10 }, patience, time.Millisecond)
	require.NoError(t, s.DropConnections(0))
	for _, ch := range waiting {
		a := await(t, ch)
		var broken *ConnectionError
		require.ErrorAs(t, a.err, &broken)
		assert.Equal(t, s.Regions()[0].Server, broken.Server)
		assert.Error(t, broken.Unwrap())
	}
	assert.Equal(t, 10, c.Stats().ConnectionErrors)
	get(t.Context(), c, "ATL")
	require.Eventually(t, func() bool { return s.Stats().Gets == 11 }, patience, time.Millisecond)
}

func TestCrashedServerIsFoundAgain(t *testing.T) {
	s := startStore(t, store.Config{Servers: 2, Splits: []string{"M"}})
	s.Load(row("ATL"), row("SFO"))
	c := newClient(t, s.MetaAddr())
	require.NoError(t, getNow(t, c, "ATL").err)
	before := s.Regions()[0].Server
	require.NoError(t, s.Crash(0))

	var lost *ConnectionError
	// The client may notice the broken connection only after the first Get.
	require.ErrorAs(t, getNow(t, c, "ATL").err, &lost)
	require.ErrorAs(t, getNow(t, c, "ATL").err, &lost)
	require.NoError(t, getNow(t, c, "SFO").err, "the other server is not concerned")

	squatter, err := net.Listen("tcp", before) // so that the server returns on another address
	require.NoError(t, err)
	require.NoError(t, s.Revive(0))
	require.NoError(t, squatter.Close())
	r, _ := getAgain(t, c, "ATL")
	assert.Equal(t, "name of ATL", r.Value("info:name"))
}

// While a server is known to be unreachable, Gets fail without dialing.
func TestGet_UnreachableServerIsNotDialed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	c := newClient(t, scriptedMeta(t, wire.Region{Name: "all", Server: ln.Addr().String()}))
	begun := time.Now()
	for range 50 {
		var lost *ConnectionError
		require.ErrorAs(t, getNow(t, c, "ATL").err, &lost)
	}
	most := 2 + int(time.Since(begun)/failedFor) // plus one dial to the meta server
	assert.LessOrEqual(t, c.Stats().Dials, most)
	assert.Equal(t, 50, c.Stats().ConnectionErrors)
}

func TestContextEndsAGet(t *testing.T) {
	s := startStore(t, store.Config{Servers: 1, MinLatency: time.Hour, MaxLatency: time.Hour})
	why := errors.New("why")

	t.Run("before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		c := newClient(t, s.MetaAddr())
		assert.Equal(t, why, await(t, get(ctx, c, "ATL")).err)
		assert.Zero(t, c.Stats())
	})
	t.Run("in the look-up", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		c := newClient(t, s.MetaAddr()) // the meta server answers only after an hour
		ch := get(ctx, c, "ATL")
		cancel(why)
		assert.Equal(t, why, await(t, ch).err)
	})
	t.Run("at the server", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		c := newClient(t, scriptedMeta(t, s.Regions()[0]))
		ch := get(ctx, c, "ATL")
		require.Eventually(t, func() bool { return s.Stats().Gets == 1 }, patience, time.Millisecond)
		cancel(why)
		assert.Equal(t, why, await(t, ch).err)
		c.mu.Lock()
		n := c.conns[s.Regions()[0].Server]
		c.mu.Unlock()
		n.mu.Lock()
		defer n.mu.Unlock()
		assert.Empty(t, n.pending, "the call is forgotten")
	})
}

// watched is a context that counts its AfterFuncs.
type watched struct {
	context.Context
	done     chan struct{}
	watchers atomic.Int32
}

func (w *watched) Done() <-chan struct{} { return w.done }

func (w *watched) AfterFunc(func()) (stop func() bool) {
	w.watchers.Add(1)
	return func() bool { w.watchers.Add(-1); return true }
}

// A Get that has ended is no longer registered with its context.
func TestContextIsLetGo(t *testing.T) {
	s := startStore(t, store.Config{Servers: 1})
	c := newClient(t, s.MetaAddr())
	ctx := &watched{Context: t.Context(), done: make(chan struct{})}
	ch := get(ctx, c, "ATL")
	assert.LessOrEqual(t, ctx.watchers.Load(), int32(1))
	require.NoError(t, await(t, ch).err)
	assert.Zero(t, ctx.watchers.Load())
}

func TestCloseEndsEverything(t *testing.T) {
	s := startStore(t, store.Config{Servers: 1, MinLatency: time.Hour, MaxLatency: time.Hour})
	for name, meta := range map[string]string{
		"in the look-up": s.MetaAddr(),
		"at the server":  scriptedMeta(t, s.Regions()[0]),
	} {
		t.Run(name, func(t *testing.T) {
			c := New(meta)
			var waiting []<-chan answer
			for range 20 {
				waiting = append(waiting, get(t.Context(), c, "ATL"))
			}
			require.NoError(t, c.Close())
			for _, ch := range waiting {
				assert.Equal(t, ErrClosed, await(t, ch).err)
			}
			assert.Equal(t, ErrClosed, getNow(t, c, "ATL").err, "afterwards, too")
			require.NoError(t, c.Close())
			assert.Zero(t, c.Stats().ConnectionErrors)
		})
	}
}

func TestMetaServerThatIsGone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	c := newClient(t, ln.Addr().String())
	for range 5 {
		var lost *ConnectionError
		require.ErrorAs(t, getNow(t, c, "ATL").err, &lost)
	}
}

// A wrong answer from the meta server is an error, not a loop.
func TestMetaServerThatIsWrong(t *testing.T) {
	for name, region := range map[string]wire.Region{
		"not the row's": {Name: "r", Start: "X"},
		"refused":       {},
	} {
		t.Run(name, func(t *testing.T) {
			meta := scripted(t, func(req wire.Request) (wire.Response, bool) {
				if region.Name == "" {
					return wire.Response{Status: wire.StatusError, Message: "I am no meta server"}, true
				}
				return wire.Response{Status: wire.StatusLocation, Region: region}, true
			})
			c := newClient(t, meta)
			var refused *RemoteError
			require.ErrorAs(t, getNow(t, c, "ATL").err, &refused)
			assert.Equal(t, meta, refused.Server)
			assert.Contains(t, refused.Error(), meta)
		})
	}
}

func TestServerThatRefuses(t *testing.T) {
	server := scripted(t, func(wire.Request) (wire.Response, bool) {
		return wire.Response{Status: wire.StatusError, Message: "no"}, true
	})
	c := newClient(t, scriptedMeta(t, wire.Region{Name: "all", Server: server}))
	var refused *RemoteError
	require.ErrorAs(t, getNow(t, c, "ATL").err, &refused)
	assert.Equal(t, RemoteError{Server: server, Message: "no"}, *refused)
}

// A server that accepts requests but does not answer is given up after a while.
func TestServerThatIsSilent(t *testing.T) {
	var talks atomic.Bool
	server := scripted(t, func(wire.Request) (wire.Response, bool) {
		return wire.Response{Status: wire.StatusResult}, talks.Load()
	})
	c := newClient(t, scriptedMeta(t, wire.Region{Name: "all", Server: server}))
	c.silence = 30 * time.Millisecond
	var lost *ConnectionError
	a := getNow(t, c, "ATL")
	require.ErrorAs(t, a.err, &lost)
	var timeout net.Error
	require.ErrorAs(t, a.err, &timeout)
	assert.True(t, timeout.Timeout())

	// Canceled Gets do not excuse the silence, and new ones do not extend it.
	dials := c.Stats().Dials
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		given := get(ctx, c, "ATL")
		cancel()
		await(t, given)
		return c.Stats().Dials >= dials+3 // three more connections broke
	}, patience, time.Millisecond)

	talks.Store(true)
	_, _ = getAgain(t, c, "ATL")
}

func TestServerThatTalksNonsense(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var server sync.WaitGroup
	server.Go(func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		_, _ = io.Copy(io.Discard, nc)
		_ = nc.Close()
	})
	c := newClient(t, scriptedMeta(t, wire.Region{Name: "all", Server: ln.Addr().String()}))
	a := getNow(t, c, "ATL")
	assert.ErrorIs(t, a.err, wire.ErrMalformed)
	require.NoError(t, ln.Close())
	server.Wait()
}

// Regions in the cache never overlap, in whatever order they arrive.
func TestRegionCache(t *testing.T) {
	c := newClient(t, "nowhere")
	remember := func(start, end, server string) {
		c.rememberLocked(wire.Region{Name: start + "-" + end, Start: start, End: end, Server: server})
	}
	remember("M", "", "s2")
	remember("", "M", "s1")
	remember("C", "P", "s3") // split and merged meanwhile
	_, known := c.cachedLocked("ATL")
	assert.False(t, known)
	r, known := c.cachedLocked("M")
	assert.True(t, known)
	assert.Equal(t, "s3", r.Server)
	remember("", "C", "s1")
	remember("P", "", "s1")
	assert.Len(t, c.regions, 3)
	c.forgetServerLocked("s1")
	assert.Equal(t, []wire.Region{{Name: "C-P", Start: "C", End: "P", Server: "s3"}}, c.regions)
}

// All faults at once, until all rows were read: every Get calls back exactly once, and
// goleak finds no leak.
func TestGet_AllFaultsAtOnce(t *testing.T) {
	faults := store.DefaultFaults(5)
	faults.EventEvery = 60
	faults.MaxLag, faults.DownFor, faults.SlowFor, faults.SlowBy, faults.Transition = // on busy machines rows are late anyway
		500*time.Millisecond, 40*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond, 5*time.Millisecond
	s := startStore(t, store.Config{Servers: 3, Splits: []string{"ROW100", "ROW200"}, MaxLatency: 2 * time.Millisecond, Faults: faults})
	const rows, times = 300, 3
	for i := range rows {
		s.Load(row(fmt.Sprintf("ROW%03d", i)))
	}
	c := newClient(t, s.MetaAddr())
	var got, twice atomic.Int32
	var kinds [3]atomic.Int32
	var all sync.WaitGroup
	for i := range rows * times {
		key := fmt.Sprintf("ROW%03d", i%rows)
		all.Go(func() {
			for {
				ch := get(t.Context(), c, key)
				a := await(t, ch)
				if len(ch) > 0 {
					twice.Add(1)
				}
				var moved *NotServingRegionError
				var lost *ConnectionError
				switch {
				case errors.As(a.err, &moved):
					kinds[0].Add(1)
				case errors.As(a.err, &lost):
					kinds[1].Add(1)
				case a.err != nil:
					t.Errorf("unexpected error: %v", a.err)
					return
				case a.Empty():
					kinds[2].Add(1)
				default:
					assert.Equal(t, "name of "+key, a.Value("info:name"))
					got.Add(1)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, rows*times, got.Load())
	assert.Zero(t, twice.Load())
	for i, kind := range []string{"not serving", "connection error", "empty result"} {
		assert.Positive(t, kinds[i].Load(), "%s never happened: the test proves nothing about it", kind)
	}
}

// scripted starts a server that answers with the result of a function, or not at all.
func scripted(t *testing.T, answer func(wire.Request) (wire.Response, bool)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var conns sync.WaitGroup
	serve := func(nc net.Conn) {
		defer func() { _ = nc.Close() }()
		in := bufio.NewReader(nc)
		for {
			req, err := wire.ReadRequest(in)
			if err != nil {
				return
			}
			if resp, ok := answer(req); ok {
				resp.ID = req.ID
				_, _ = nc.Write(wire.AppendResponse(nil, resp))
			}
		}
	}
	conns.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { serve(nc) })
		}
	})
	// Cleanups run in reverse order, so the client, which is created later, is closed by
	// then.
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Wait()
	})
	return ln.Addr().String()
}

// scriptedMeta starts a meta server that returns the same region for every row.
func scriptedMeta(t *testing.T, region wire.Region) string {
	t.Helper()
	return scripted(t, func(wire.Request) (wire.Response, bool) {
		return wire.Response{Status: wire.StatusLocation, Region: region}, true
	})
}
