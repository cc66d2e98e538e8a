package server_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

func heap() int64 {
	var m runtime.MemStats
	for range 3 { // garbage of other tests is freed in steps
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// X3: the charged bytes cover the used bytes, so that MaxBytes is a bound.
func TestBytesAreHonest(t *testing.T) {
	for name, request := range map[string]func(i int) exactlyonce.Request{
		"one client": func(i int) exactlyonce.Request { return request(int64(i) + 1) },
		"many clients": func(int) exactlyonce.Request {
			return exactlyonce.Request{Scope: "alice", ID: exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1, Attempt: 1}}
		},
	} {
		for what, end := range map[string]func(call *server.Call){
			"completed": func(call *server.Call) { _ = call.Complete(make([]byte, 64)) },
			"running":   func(*server.Call) {},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				const n = 10_000
				before := heap()
				r := server.NewResults(server.Config{})
				for i := range n {
					call, err := r.Track(t.Context(), request(i))
					require.NoError(t, err)
					end(call)
				}
				used, charged := heap()-before, r.Stats().Bytes
				t.Logf("%d bytes used, %d charged for each request", used/n, charged/n)
				require.LessOrEqual(t, used, charged*11/10)
				require.GreaterOrEqual(t, used, charged/3)
				require.NoError(t, r.Close(t.Context()))
			})
		}
	}
}

// X3: spans of removed answers are charged, with the steps that name them.
func TestResultsBytes_SpansOfManySteps(t *testing.T) {
	for name, tt := range map[string]struct {
		n, clients int
		step       func(i int) string
	}{
		"no step":      {4000, 8, func(int) string { return "" }},
		"many steps":   {4000, 8, func(i int) string { return fmt.Sprintf("%064d", i) }},
		"many clients": {1, 20_000, func(int) string { return "" }},
	} {
		t.Run(name, func(t *testing.T) {
			n, clients, step := tt.n, tt.clients, tt.step
			before := heap()
			mock := clock.NewMock()
			r := server.NewResults(server.Config{Clock: mock})
			for i := range n * clients {
				req := request(int64(i)*2 + 2)
				binary.BigEndian.PutUint64(req.Client[:], uint64(i%clients))
				req.Step = step(i / clients)
				call, err := r.Track(t.Context(), req)
				require.NoError(t, err)
				require.NoError(t, call.Complete(nil))
			}
			mock.Add(10 * time.Minute)
			require.NoError(t, r.Collect(t.Context()))
			require.Zero(t, r.Stats().Records)
			used, charged := heap()-before, r.Stats().Bytes
			t.Logf("%d bytes used, %d charged for each span", used/int64(n*clients), charged/int64(n*clients))
			require.LessOrEqual(t, used, charged*11/10)
			require.GreaterOrEqual(t, used, charged/3)
			require.NoError(t, r.Close(t.Context()))
		})
	}
}

// Tracking costs one allocation, and occasionally another one for a page or a slab.
func TestAllocations(t *testing.T) {
	r := server.NewResults(server.Config{})
	answer := []byte("answer")
	seq := int64(0)
	ctx := t.Context()
	allocs := testing.AllocsPerRun(2000, func() {
		seq++
		req := since(seq, max(1, seq-100))
		_, _, _ = r.Do(ctx, req, func(context.Context) ([]byte, error) { return answer, nil })
	})
	require.LessOrEqual(t, allocs, 1.0)
	require.NoError(t, r.Close(ctx))
}
