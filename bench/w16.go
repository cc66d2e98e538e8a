package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/message"
)

// Metrics of W16.
const (
	ServerBytes = "server-B/elem" // memory reachable in the server's process
	IndexBytes  = "index-B/elem"  // additional memory of a worker's index
	DiskBytes   = "disk-B/elem"
	PutNs       = "put-ns/elem"
	IndexMs     = "index-ms"   // first Take, which reads all headers
	RestartMs   = "restart-ms" // the server reads its directory
)

// w16 has a million messages waiting in a layer on JetStream.
func w16(c Config) []Group {
	return []Group{{
		Workload: "W16", Elems: c.elems(1_000_000, 2_000), Key: ServerBytes, Heavy: true,
		Title: "messages of 256 bytes that wait an hour in a layer on an embedded JetStream",
		Rows:  []Row{{Impl: "weir", Kind: Weir, Run: waitOnJetStream}},
		Aims: []Aim{
			{Impl: "weir", Metric: ServerBytes, Max: 500},
			{Impl: "weir", Metric: IndexBytes, Max: 400},
		},
	}}
}

func waitOnJetStream(m *Meter, n int) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	e, err := embeddedServer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	s, err := weirjs.New(ctx, e.js, weirjs.WithStream("retries"), weirjs.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	per := func(metric string, bytes int64) { m.Report(metric, float64(bytes)/float64(n)) }
	before := liveBytes()
	m.Start()
	for i := 0; i < n; {
		var ms []store.Message
		for ; i < n && len(ms) < 1000; i++ {
			at := message.Origin{Source: "orders", Partition: "0", Position: strconv.Itoa(i)}
			ms = append(ms, store.Message{Meta: message.Meta{ID: at.ID(), Origin: at}, Payload: payload, Delay: time.Hour})
		}
		if err := s.Put(ctx, "layer", ms...); err != nil {
			return err
		}
	}
	m.Stop()
	per(PutNs, int64(m.wall))
	server := liveBytes()
	per(ServerBytes, server-before)

	begun := time.Now()
	early, err := s.Take(ctx, "layer", 100, time.Minute)
	if err != nil || len(early) > 0 {
		return cmp.Or(err, fmt.Errorf("%d of the messages came early", len(early)))
	}
	m.Report(IndexMs, float64(time.Since(begun).Milliseconds()))
	per(IndexBytes, liveBytes()-server)
	if err := s.Close(); err != nil {
		return err
	}

	disk, err := bytesIn(e.dir)
	if err != nil {
		return err
	}
	per(DiskBytes, disk)
	begun = time.Now()
	if err := e.restart(); err != nil {
		return err
	}
	m.Report(RestartMs, float64(time.Since(begun).Milliseconds()))
	stream, err := e.js.Stream(ctx, "retries")
	if err != nil {
		return err
	}
	return has(stream, n+1) // plus the queue's name
}

func has(stream jetstream.Stream, n int) error {
	if got := stream.CachedInfo().State.Msgs; got != uint64(n) {
		return fmt.Errorf("stream %s has %d messages, want %d", stream.CachedInfo().Config.Name, got, n)
	}
	return nil
}

func bytesIn(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
