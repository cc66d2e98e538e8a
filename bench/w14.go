package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/message"
)

// engine is a queue system with the queues "in" and "out".
type engine interface {
	// fill puts messages into "in". Message i has the key keyOf(i) and the payload
	// numbered(i).
	fill(ctx context.Context, n int) error
	// bare moves n messages with only the engine's client. It acknowledges each message
	// after its result is confirmed.
	bare(ctx context.Context, n int) error
	// open returns weir's source and sink.
	open(ctx context.Context) (delivery.Source[[]byte], delivery.Sink[[]byte], error)
	// moved calls f for each message of "out", in order for each key.
	moved(ctx context.Context, n int, f func(payload []byte)) error
	// close ends the engine and removes its data.
	close() error
}

// orderKeys is the number of keys, whose messages keep their order, and of partitions.
const orderKeys = 4

func keyOf(i int) int { return i % orderKeys }

// numbered returns 256 bytes that start with a number. The rest is random, because Kafka
// clients compress.
func numbered(i int) []byte {
	b := make([]byte, 256)
	random := rand.NewPCG(uint64(i), 0)
	for at := 8; at < len(b); at += 8 {
		binary.BigEndian.PutUint64(b[at:], random.Uint64())
	}
	binary.BigEndian.PutUint64(b, uint64(i))
	return b
}

func numberOf(payload []byte) (int, error) {
	if len(payload) != 256 {
		return 0, fmt.Errorf("a message has %d bytes", len(payload))
	}
	return int(binary.BigEndian.Uint64(payload)), nil
}

// w14 moves messages from queue to queue through an operator, with 10 % retried after 10
// ms, and compares this with the engine's client alone.
func w14(c Config) []Group {
	type kind struct {
		name  string
		elems int
		slots int // enough not to be the limit: in ordered mode one retry of 10 ms blocks all slots
		start func() (engine, error)
		weir  func() (engine, error) // nil means start
	}
	kinds := []kind{
		{"jetstream-embedded", c.elems(20_000, 300), 1000, startEmbedded, nil},
		{"jetstream-embedded-own", c.elems(20_000, 300), 1000, startEmbedded, own(embeddedServer)},
		{"jetstream-cluster", c.elems(50_000, 300), 1000, startCluster, nil},
		{"jetstream-cluster-own", c.elems(20_000, 300), 1000, startCluster, own(clusterOfThree)},
		{"kfake", c.elems(200_000, 1000), 10_000, startKafka, nil},
	}
	if clustertest.Libs() != "" {
		kinds = append(kinds, kind{"kafka-cluster", c.elems(200_000, 1000), 10_000, startBrokers, nil})
	}
	var groups []Group
	for _, e := range kinds {
		if e.weir == nil {
			e.weir = e.start
		}
		groups = append(groups, Group{
			Workload: "W14", Variant: "engine=" + e.name, Elems: e.elems,
			Title: "messages of 256 bytes from queue to queue, 10 % retried after 10 ms",
			Rows: []Row{
				engineRow("bare", Peer, e.start, func(ctx context.Context, e engine, n int) error { return e.bare(ctx, n) }),
				engineRow("weir-ordered", Weir, e.weir, moveByWeir(true, e.slots)),
				engineRow("weir-unordered", Weir, e.weir, moveByWeir(false, e.slots)),
			},
			Aims: []Aim{
				{Impl: "weir-ordered", Against: "bare", Max: 1 / 0.7},
				{Impl: "weir-unordered", Against: "bare", Max: 1 / 0.7},
			},
		})
	}
	return groups
}

// engineRow returns a row that starts an engine, moves messages, and checks the output.
func engineRow(impl string, kind Kind, start func() (engine, error), move func(ctx context.Context, e engine, n int) error) Row {
	return Row{Impl: impl, Kind: kind, Run: func(m *Meter, n int) (err error) {
		ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
		defer cancel()
		e, err := start()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.close()) }()
		if err := e.fill(ctx, n); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
		m.Start()
		err = move(ctx, e, n)
		m.Stop()
		return cmp.Or(err, checkMoved(ctx, e, n, impl == "weir-ordered"))
	}}
}

// checkMoved checks the messages in "out", and their order only if ordered: bare workers
// and the unordered operator may reorder.
func checkMoved(ctx context.Context, e engine, n int, ordered bool) error {
	seen := make([]bool, n)
	var last [orderKeys]int
	came := 0
	var wrong error
	err := e.moved(ctx, n, func(payload []byte) {
		i, err := numberOf(payload)
		switch {
		case err != nil:
		case i >= n:
			err = fmt.Errorf("message %d was made up", i)
		case seen[i]:
			err = fmt.Errorf("message %d came twice", i)
		case ordered && i < last[keyOf(i)]:
			err = fmt.Errorf("message %d came behind %d", i, last[keyOf(i)])
		default:
			seen[i] = true
			last[keyOf(i)] = i
			came++
		}
		wrong = cmp.Or(wrong, err)
	})
	if err := cmp.Or(err, wrong); err != nil {
		return err
	}
	if came != n {
		return fmt.Errorf("%d of %d messages came out", came, n)
	}
	return nil
}

// moveByWeir moves messages through an operator. One call in ten fails at first.
func moveByWeir(ordered bool, slots int) func(ctx context.Context, e engine, n int) error {
	return func(ctx context.Context, e engine, n int) error {
		ctx, enough := context.WithCancel(ctx)
		defer enough()
		source, sink, err := e.open(ctx)
		if err != nil {
			return err
		}
		tried := make([]atomic.Int32, n)
		call := asyncop.Blocking(func(_ context.Context, payload []byte) ([]byte, error) {
			i, err := numberOf(payload)
			if err == nil && tried[i].Add(1) == 1 && FailsFirst(i) {
				err = errUnavailable
			}
			return payload, err
		})
		build := asyncop.UnorderedWaitWithRetry[[]byte, []byte]
		if ordered {
			build = asyncop.OrderedWaitWithRetry[[]byte, []byte]
		}
		op := build(call, time.Minute, slots, fixedDelay[[]byte](10*time.Millisecond), asyncop.WithDropOnFailure())
		left := &leftSink{sink, n, enough}
		if _, err := delivery.Run(ctx, source, op, left, delivery.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
			return err
		}
		for i := range tried {
			if got, want := tried[i].Load(), twiceIfFailing(i); got != want {
				return fmt.Errorf("message %d: %d calls, want %d", i, got, want)
			}
		}
		return nil
	}
}

type leftSink struct {
	delivery.Sink[[]byte]
	left   int
	enough func()
}

func (s *leftSink) PutAll(ctx context.Context, ms []message.Message[[]byte]) error {
	err := s.Sink.PutAll(ctx, ms)
	s.left -= len(ms)
	if s.left <= 0 {
		s.enough()
	}
	return err
}
