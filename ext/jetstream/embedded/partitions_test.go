package embedded_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/partitions"
)

// Workers share the partitions by locks. One of them leaves, and its partitions continue
// elsewhere (law P1).
func TestPartitions(t *testing.T) {
	t.Parallel()
	const elements = 300
	srv := fresh(t)
	js := connect(t, srv)
	_, err := js.CreateStream(t.Context(), jscheckpoint.StreamConfig("checkpoints"))
	require.NoError(t, err)
	locks := newStore(t, js)
	var names []string
	for range 4 {
		in, out := newStream(t, js), newStream(t, js)
		names = append(names, in+"-"+out)
		var values []string
		for i := range elements {
			values = append(values, strconv.Itoa(i))
		}
		publish(t, js, in, values...)
	}
	worker := func(ctx context.Context, name string) error {
		js := connect(t, srv)
		engine := openStore(t, js, locks)
		return partitions.Run(ctx, partitions.Config{
			Assigner: &partitions.Leases{
				Locks: engine.Locks(), Group: "g", Partitions: names, Worker: name,
				Lease: 3 * time.Second, Poll: 50 * time.Millisecond, Logger: quiet(),
			},
			Stores: jscheckpoint.Stores(js, "checkpoints", "g"),
			Logger: quiet(),
			Pipeline: func(ctx context.Context, p partitions.Partition) error {
				in, out, _ := strings.Cut(p.Name, "-")
				slow := asyncop.Blocking(func(ctx context.Context, v string) (string, error) {
					select {
					case <-time.After(20 * time.Millisecond):
						return v, nil
					case <-ctx.Done():
						return "", ctx.Err()
					}
				})
				input := jscheckpoint.NewInput(js, in, codec.JSON[string](), jscheckpoint.InputConfig{End: true})
				source := checkpoint.NewSource(p.Coordinator, "in", input)
				op := asyncop.OrderedWait(slow, 10*time.Second, 10, asyncop.WithName("op"), asyncop.WithLogger(quiet()),
					asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx))
				output := jscheckpoint.NewOutput(js, out, out, codec.JSON[string]())
				sink := checkpoint.NewSink(p.Coordinator, "out", output)
				if err := p.Coordinator.Start(); err != nil {
					return err
				}
				source.Via(op).To(sink)
				return p.Coordinator.Wait()
			},
		})
	}
	var all sync.WaitGroup
	stay, stop := context.WithCancel(t.Context())
	leave, removed := context.WithCancel(t.Context())
	for i, ctx := range []context.Context{stay, leave} {
		all.Go(func() {
			if err := worker(ctx, strconv.Itoa(i)); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	time.AfterFunc(400*time.Millisecond, removed)
	require.Eventually(t, func() bool {
		for _, p := range names {
			_, out, _ := strings.Cut(p, "-")
			if count(t, js, out) < elements {
				return false
			}
		}
		return true
	}, 2*time.Minute, 20*time.Millisecond)
	stop()
	all.Wait()
	for _, p := range names {
		_, out, _ := strings.Cut(p, "-")
		got, err := values[string](js, out)
		require.NoError(t, err)
		require.Len(t, got, elements)
		for i, v := range got {
			require.Equal(t, strconv.Itoa(i), v)
		}
	}
}
