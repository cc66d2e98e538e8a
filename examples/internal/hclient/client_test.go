package hclient_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/examples/internal/hclient"
	"github.com/weirflow/weir/examples/internal/hstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, faults hstore.Faults, rows int) (*hclient.Client, *hstore.Cluster) {
	t.Helper()
	s, err := hstore.Start(faults)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	for i := range rows {
		s.Load(key(i), map[string]string{"info:name": "name of " + key(i)})
	}
	c := hclient.New(s.MetaAddr())
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c, s
}

// key returns a row key. The keys are spread over the regions.
func key(i int) string { return fmt.Sprintf("%c%03d", 'A'+i%26, i) }

type answer struct {
	hclient.Result
	err error
}

// get starts a Get. The channel has room for two answers, to detect a second one.
func get(ctx context.Context, c *hclient.Client, key string) <-chan answer {
	ch := make(chan answer, 2)
	c.Get(ctx, key, func(r hclient.Result, err error) { ch <- answer{r, err} })
	return ch
}

func TestGet(t *testing.T) {
	c, _ := start(t, hstore.Faults{}, 26)
	for i := range 26 {
		a := <-get(t.Context(), c, key(i))
		require.NoError(t, a.err)
		assert.Equal(t, "name of "+key(i), a.Result["info:name"])
	}
	missing := <-get(t.Context(), c, "XQQ")
	require.NoError(t, missing.err, "a missing row is not an error")
	assert.True(t, missing.Empty())

	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	ch := get(ctx, c, key(1))
	cancel(why)
	a := <-ch
	if a.err != nil { // otherwise the answer was faster
		assert.Equal(t, why, a.err)
	}
	assert.Equal(t, why, (<-get(ctx, c, key(1))).err)
	assert.Zero(t, c.Stats())
}

func TestGet_StoreIsGone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	c := hclient.New(ln.Addr().String())
	var lost *hclient.ConnectionError
	require.ErrorAs(t, (<-get(t.Context(), c, "ATL")).err, &lost)
	assert.Equal(t, ln.Addr().String(), lost.Server)
	assert.Equal(t, hclient.Stats{ConnectionErrors: 1}, c.Stats())
	require.NoError(t, c.Close())
}

// All faults at once, until all rows were read: every Get calls back exactly once, with
// each of the outcomes that the pipeline retries.
func TestGet_AllFaultsAtOnce(t *testing.T) {
	faults := hstore.DefaultFaults(5)
	faults.EventEvery = 60
	faults.DownFor, faults.SlowFor, faults.SlowBy, faults.Transition = // on busy machines rows are late anyway
		40*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond, 5*time.Millisecond
	const rows, times = 300, 3
	c, s := start(t, faults, rows)
	var moved, lost, empty, twice atomic.Int32
	var all sync.WaitGroup
	for i := range rows * times {
		all.Go(func() {
			for {
				ch := get(t.Context(), c, key(i%rows))
				a := <-ch
				if len(ch) > 0 {
					twice.Add(1)
				}
				switch {
				case a.err == nil && a.Empty():
					empty.Add(1)
				case a.err == nil:
					assert.Equal(t, "name of "+key(i%rows), a.Result["info:name"])
					return
				default:
					_, isMoved := errors.AsType[*hclient.NotServingRegionError](a.err)
					_, isLost := errors.AsType[*hclient.ConnectionError](a.err)
					if isMoved {
						moved.Add(1)
					}
					if isLost {
						lost.Add(1)
					}
					if !isMoved && !isLost {
						t.Errorf("unexpected error: %v", a.err)
						return
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
	assert.Zero(t, twice.Load())
	assert.Equal(t, hclient.Stats{NotServing: int(moved.Load()), ConnectionErrors: int(lost.Load())}, c.Stats())
	assert.Positive(t, moved.Load())
	assert.Positive(t, lost.Load())
	assert.Positive(t, empty.Load())
	for _, kind := range hstore.Kinds {
		assert.Positive(t, s.Stats().Events[kind], kind)
	}
}
