package kafka

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery"
)

// TestOutput_TransactionThatTheBrokersEnd freezes an output in its transaction for longer
// than transaction.timeout.ms: the brokers abort it, so the output has lost its place,
// and the next run publishes what is in the checkpoint, once (law C1).
func TestOutput_TransactionThatTheBrokersEnd(t *testing.T) {
	all := ownBrokers(t, 1)
	c := clusterOf(t, all)
	require.NoError(t, c.CreateTopic("invoices", 1, nil))
	var f freezer
	var armed atomic.Bool
	frozen := make(chan struct{})
	hook := newRequests(kmsg.Produce, func(int64) {
		if armed.CompareAndSwap(true, false) {
			f.freeze()
			close(frozen)
		}
	})
	open := func(opts ...kgo.Opt) *output[string] {
		out, err := newOutput(OutputConfig[string]{
			Client: append(opts, c.seed(), kgo.TransactionTimeout(time.Second)), TransactionalID: "id", Topic: "invoices",
			Encode: func(v string) (*kgo.Record, error) { return kgo.StringRecord(v), nil },
		})
		require.NoError(t, err)
		return out
	}
	out := open(f.dialer(), kgo.WithHooks(hook))
	defer out.Close()
	for _, v := range numbers(10) {
		require.NoError(t, out.Write(t.Context(), v))
	}
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	armed.Store(true)
	committing := make(chan error, 1)
	go func() { committing <- out.Commit(t.Context(), state) }()
	<-frozen
	eventually(t, func() bool {
		of, err := kadm.NewClient(c.admin).DescribeTransactions(t.Context(), "id")
		return err == nil && of["id"].State == "CompleteAbort"
	}, "the brokers have aborted the transaction")
	f.thaw(false)
	require.ErrorIs(t, <-committing, checkpoint.ErrFenced)
	next := open()
	defer next.Close()
	require.NoError(t, next.Restore(t.Context(), state))
	published, err := c.reader().published()
	require.NoError(t, err)
	assert.Equal(t, numbers(10), published)
}

// TestSource_FullDisk fills the disk of a broker while a worker works. The broker ends.
// When there is room again and the broker is started, the worker continues, and no
// message is lost (laws D1, D5).
func TestSource_FullDisk(t *testing.T) {
	const n = 3000
	all := ownBrokers(t, 1)
	b := all[0]
	b.Shutdown()
	data := filepath.Join(b.Dir, "data")
	require.NoError(t, os.Rename(data, data+"-old"))
	require.NoError(t, os.Mkdir(data, 0o750))
	if err := syscall.Mount("tmpfs", data, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("skipped, a small disk cannot be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(data, syscall.MNT_DETACH) })
	out, err := exec.Command("cp", "-a", data+"-old/.", data).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, b.Restart())
	c := clusterOf(t, all)
	for _, topic := range []string{"orders", "orders-dead", "done"} {
		require.NoError(t, c.CreateTopic(topic, 1, map[string]string{"retention.ms": "-1"}))
	}
	c.produce("orders", 1, numbers(n)...)
	e := c.engine(WithTopics("work", "orders"), WithPartitions(1), WithReplicas(1))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var calls atomic.Int64
	half := make(chan struct{})
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, v int) (int, error) {
		if calls.Add(1) == n/2 {
			close(half)
		}
		time.Sleep(time.Millisecond)
		return v, ctx.Err()
	}), time.Minute, 10, asyncop.WithDropOnFailure(), asyncop.WithLogger(silent))
	ended := make(chan error, 1)
	go func() {
		_, err := delivery.Run(ctx, delivery.NewQueue[int](e, "work", delivery.WithLogger(silent)), op, delivery.NewQueue[int](e, "done"),
			delivery.WithLogger(silent), delivery.WithBatch(10))
		ended <- err
	}()
	<-half
	ballast := filepath.Join(data, "ballast")
	require.ErrorIs(t, fill(ballast), syscall.ENOSPC)
	select {
	case <-b.Ended():
	case <-time.After(2 * time.Minute):
		require.Fail(t, "the broker lives without a disk")
	}
	require.NoError(t, os.Remove(ballast))
	require.NoError(t, b.Restart())
	seen := map[string]bool{}
	reader := c.client(kgo.ConsumeTopics("done"))
	for len(seen) < n {
		poll, enough := context.WithTimeout(t.Context(), 2*time.Minute)
		fetches := reader.PollFetches(poll)
		require.NoError(t, poll.Err(), "%d of %d are done", len(seen), n)
		enough()
		fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)] = true })
	}
	for i := range n {
		require.True(t, seen[strconv.Itoa(i)], i)
	}
	stop()
	require.NoError(t, <-ended)
}

// fill writes to a file until its disk is full.
func fill(name string) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = file.Write(block)
	}
	return errors.Join(err, file.Close())
}
