package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka/internal/offsets"
	"github.com/weirflow/weir/message"
)

// The tests of this file own one empty partition, and put records into it by hand.
var (
	only  = partitionID{"orders", 0}
	onlyM = map[string][]int32{"orders": {0}}
)

func owner(t *testing.T, opts ...sourceOption) *testSource {
	t.Helper()
	s := newCluster(t, 1, "orders").source("orders", opts...)
	eventually(t, func() bool { return owned(s) == 1 }, "it has the partition")
	return s
}

// arriving lets records of these offsets arrive.
func arriving(s *testSource, change func(*entry), offsets ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range offsets {
		e := &entry{id: only, record: &kgo.Record{Topic: "orders", Offset: o, Value: []byte("v")}, meta: &message.Meta{ID: strconv.FormatInt(o, 10)}}
		e.timer.Value = e
		if change != nil {
			change(e)
		}
		s.arrive(s.parts[only], e)
	}
}

func takes(t *testing.T, s *testSource) (n int) {
	t.Helper()
	entries, _, err := s.take(10)
	require.NoError(t, err)
	return len(entries)
}

// TestUnreadableHoldUpNothing asks for one message at a time while some unreadable
// messages and a readable one are at hand.
func TestUnreadableHoldUpNothing(t *testing.T) {
	var b box
	s := owner(t, withDeadLetters(b.put))
	arriving(s, func(e *entry) {
		if e.record.Offset < 2 {
			e.damaged = errors.New("x")
		}
	}, 0, 1, 2)
	ms := receive(t, s, 1)
	assert.Equal(t, "2", ms[0].Meta().ID)
}

// TestPart_PutFails checks law D4.
func TestPart_PutFails(t *testing.T) {
	var b box
	s := owner(t, withDeadLetters(func(ctx context.Context, ms ...store.Message) error {
		if ms[0].Meta.ID == "0" {
			return errors.New("too large")
		}
		return b.put(ctx, ms...)
	}))
	arriving(s, nil, 0, 1, 2)
	for _, m := range receive(t, s, 3) {
		m.Reject(errors.New("no order"))
	}
	eventually(t, func() bool { return len(b.all()) == 2 }, "the others are put")
}

// TestPart_PutHangs checks law D4.
func TestPart_PutHangs(t *testing.T) {
	c := newCluster(t, 1, "orders")
	release := make(chan struct{})
	defer close(release)
	s := c.source("orders", withDeadLetters(func(context.Context, ...store.Message) error {
		<-release
		return nil
	}))
	c.produce("orders", 1, "0", "1")
	ms := receive(t, s, 2)
	ms[1].Reject(errors.New("no order"))
	ms[0].Ack()
	eventually(t, func() bool { return c.committed("orders", 0).At == 1 }, "the other one is committed")
}

// TestPart_LostDuringAPut checks that the next dead letter is put nevertheless,
// once.
func TestPart_LostDuringAPut(t *testing.T) {
	for _, err := range []error{nil, errors.New("no room")} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			putting, release := make(chan struct{}), make(chan struct{})
			var b box
			s := owner(t, withDeadLetters(func(ctx context.Context, ms ...store.Message) error {
				if ms[0].Meta.ID == "0" {
					close(putting)
					<-release
					return err
				}
				return b.put(ctx, ms...)
			}))
			arriving(s, nil, 0)
			receive(t, s, 1)[0].Reject(errors.New("no order"))
			<-putting
			s.lost(t.Context(), s.client, onlyM)
			s.assigned(t.Context(), nil, onlyM)
			arriving(s, nil, 1)
			receive(t, s, 1)[0].Reject(errors.New("no order"))
			close(release)
			eventually(t, func() bool { return len(b.all()) == 1 }, "the next one")
		})
	}
}

// TestLeaving checks that messages of a partition that is being given up are not
// returned, and that its delays are committed (law D3).
func TestLeaving(t *testing.T) {
	s := owner(t)
	arriving(s, nil, 0, 1, 2)
	ms := receive(t, s, 2)
	p := s.leave(onlyM)[0]
	assert.Zero(t, takes(t, s), "of what was ready")
	ms[0].Nack(time.Hour)
	ms[1].Nack(0)
	assert.Zero(t, takes(t, s), "of what comes back")
	assert.True(t, s.isIdle(p))
	s.mu.Lock()
	_, delays, err := offsets.Decode(p.progress.Low(), p.metadata(maxMetadata))
	s.mu.Unlock()
	require.NoError(t, err)
	due, ok := offsets.DueOf(delays, 0)
	assert.True(t, ok)
	assert.WithinDuration(t, time.Now().Add(time.Hour), time.UnixMilli(due), time.Minute)
}

// TestJoins lets a partition be lost and assigned again while two of its messages run.
// One record arrives again, and joins its running message (law D2). The log was cut
// before the other, so another record arrives at its offset.
func TestJoins(t *testing.T) {
	s := owner(t)
	arriving(s, nil, 0, 1)
	old := receive(t, s, 2)
	s.lost(t.Context(), s.client, onlyM)
	assert.Equal(t, 2, s.LeasesLost())
	s.assigned(t.Context(), nil, onlyM)
	arriving(s, nil, 0)
	arriving(s, func(e *entry) { e.record.Timestamp = time.Unix(1, 0) }, 1)
	s.mu.Lock()
	p := s.parts[only]
	s.mu.Unlock()
	assert.False(t, s.isIdle(p), "the one that has joined runs")
	ms := receive(t, s, 1)
	assert.Equal(t, "1", ms[0].Meta().ID)
	assert.Zero(t, takes(t, s))
	old[1].Ack() // its record no longer exists
	old[0].Ack()
	s.mu.Lock()
	assert.EqualValues(t, 1, p.progress.Low())
	assert.Equal(t, 1, p.busy)
	s.mu.Unlock()
	ms[0].Ack()
	assert.True(t, s.isIdle(p))
	s.mu.Lock()
	assert.Empty(t, s.running)
	s.mu.Unlock()
}

// TestPart_LogThatWasCut has other records arrive at offsets that were read before, while
// a message of one of them is still being processed.
func TestPart_LogThatWasCut(t *testing.T) {
	s := owner(t)
	read := func(at int64, offsets ...int64) {
		p := kgo.FetchPartition{Partition: 0}
		for _, o := range offsets {
			p.Records = append(p.Records, &kgo.Record{Topic: "orders", Offset: o, Timestamp: time.Unix(at, 0)})
		}
		s.arrived(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "orders", Partitions: []kgo.FetchPartition{p}}}}})
	}
	low := func() int64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.parts[only].progress.Low()
	}
	read(1, 0, 1, 2, 3)
	old := receive(t, s, 4)
	for _, m := range old[:3] {
		m.Ack()
	}
	assert.EqualValues(t, 3, low())
	read(2, 2, 3)
	ms := receive(t, s, 2)
	assert.Equal(t, "orders/0/2", ms[0].Meta().ID)
	assert.Equal(t, "orders/0/3", ms[1].Meta().ID)
	old[3].Ack() // its record no longer exists
	ms[0].Ack()
	assert.EqualValues(t, 3, low())
	ms[1].Ack()
	assert.EqualValues(t, 4, low())
}

// TestDelaysOfWhatHasNotArrivedStay checks law D3: an owner passes on delays of records
// that it has not read itself.
func TestDelaysOfWhatHasNotArrivedStay(t *testing.T) {
	p := &part{progress: offsets.New(0, nil), delays: []offsets.Delay{{Span: offsets.Span{From: 1, To: 2}, Due: 77}, {Span: offsets.Span{From: 4, To: 9}, Due: 88}}}
	for o := range int64(6) {
		p.progress.Arrive(o)
	}
	_, delays, err := offsets.Decode(0, p.metadata(maxMetadata))
	require.NoError(t, err)
	assert.Equal(t, []offsets.Delay{{Span: offsets.Span{From: 6, To: 9}, Due: 88}}, delays)
}

// Law D3: a commit keeps the delay of a Nack exactly beside any number of messages that
// wait only until the time in their header, which their next owner reads too. With their
// delays the metadata had no room, and the next owner made all messages wait for the last
// of them.
func TestPart_TimeInAHeader(t *testing.T) {
	p := &part{progress: offsets.New(0, nil), entries: map[int64]*entry{}}
	begun := time.Unix(1_800_000_000, 0)
	for o := range int64(1000) {
		p.progress.Arrive(o)
		due := begun.Add(time.Duration(o*o) * time.Second)
		p.entries[o] = &entry{record: &kgo.Record{Offset: o}, meta: &message.Meta{Due: due}, state: waiting, due: due}
	}
	assert.Empty(t, p.metadata(maxMetadata))
	p.entries[7].due = p.entries[7].due.Add(time.Millisecond)
	_, delays, err := offsets.Decode(0, p.metadata(maxMetadata))
	require.NoError(t, err)
	assert.Equal(t, []offsets.Delay{{Span: offsets.Span{From: 7, To: 8}, Due: begun.UnixMilli() + 49_001}}, delays)
}

func TestMillisecondsRoundUp(t *testing.T) {
	for nanoseconds, want := range map[int64]int64{0: 0, 1: 1, 999_999: 1, 1_000_000: 1, 1_000_001: 2} {
		assert.Equal(t, want, milliseconds(time.Unix(0, nanoseconds)), nanoseconds)
	}
}

// TestPart_PauseEndsWithIt gives a partition up while pauseAndResume runs. A pause
// outlives an assignment in the client, so the next assignment would not fetch. The
// client is kept busy with other pauses.
func TestPart_PauseEndsWithIt(t *testing.T) {
	s := owner(t, withMetadataLimit(minMetadata))
	others := map[string][]int32{"others": make([]int32, 1000)}
	for i := range others["others"] {
		others["others"][i] = int32(i)
	}
	ended := make(chan struct{})
	var busy sync.WaitGroup
	for range 2 {
		busy.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					s.client.PauseFetchPartitions(others)
				}
			}
		})
	}
	for range 300 {
		s.assigned(t.Context(), nil, onlyM)
		arriving(s, nil, 0)
		var both sync.WaitGroup
		both.Go(s.pauseAndResume)
		s.lost(t.Context(), s.client, onlyM)
		both.Wait()
		assert.Empty(t, s.client.PauseFetchPartitions(nil)["orders"])
	}
	close(ended)
	busy.Wait()
}

// TestPart_CommitWithoutLostPartitions checks law P1.
func TestPart_CommitWithoutLostPartitions(t *testing.T) {
	c := newCluster(t, 2, "orders")
	s := c.source("orders", withCommitInterval(time.Hour))
	eventually(t, func() bool { return owned(s) == 2 }, "it has the partitions")
	both := []partitionID{{"orders", 0}, {"orders", 1}}
	for _, lost := range [][]int32{{0, 1}, {0}} {
		require.NoError(t, commit(t.Context(), s.client, both, func(id partitionID, at *kmsg.OffsetCommitRequestTopicPartition) bool {
			at.Offset = 10
			return !slices.Contains(lost, id.partition)
		}))
	}
	assert.LessOrEqual(t, c.committed("orders", 0).At, int64(0))
	assert.EqualValues(t, 10, c.committed("orders", 1).At)
}

func TestPart_NothingIsCommittedTwice(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0")
	s := c.source("orders", withCommitInterval(time.Hour))
	receive(t, s, 1)[0].Ack()
	require.NoError(t, s.commit(t.Context()))
	assert.EqualValues(t, 1, c.committed("orders", 0).At)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.UnknownServerError, Count: -1})
	require.NoError(t, s.commit(t.Context()))
}
