package jetstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

// StreamConfig returns the config of an [Engine]'s stream, on a single server.
// [WithStreamConfig] lists the fields that may be changed.
func StreamConfig(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:               name,
		Description:        "queues of weir",
		Subjects:           []string{root + name + ".>"},
		Storage:            jetstream.FileStorage,
		Discard:            jetstream.DiscardNew, // law D5
		MaxMsgsPerSubject:  1,
		AllowAtomicPublish: true,
		AllowMsgTTL:        true,
	}
}

const (
	oneTry    = 5 * time.Second
	firstWait = 100 * time.Millisecond // it doubles
	lastWait  = 10 * time.Second
	openWait  = 5 * time.Minute
	placeWait = 30 * time.Second // for servers to find each other
)

// Open opens the engine on the servers at an address, such as nats://127.0.0.1:4222,
// several with commas. It makes the stream if it is missing, and logs that. It waits up
// to five minutes for servers that are unavailable or lack a leader, and up to 30 seconds
// for a cluster without places for the replicas, whose servers may not have found each
// other yet; another refusal is an error at once. The engine has a single connection.
func Open(ctx context.Context, address string, opts ...Option) (*Engine, error) {
	set := newSettings("Open", opts)
	connect := append([]nats.Option{nats.Name("weir"), nats.MaxReconnects(-1)}, set.connection...)
	var nc *nats.Conn
	err := set.again(ctx, func(context.Context) (err error) {
		nc, err = nats.Connect(address, connect...)
		if _, ok := errors.AsType[*url.Error](err); ok { // it has the address, with its password
			err = errors.New("an address is not a URL: escape special characters of a password with %")
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("jetstream: connecting: %w", err)
	}
	js, err := jetstream.New(nc)
	var s *Engine
	if err == nil {
		s, err = newEngine(ctx, js, set)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// New returns the engine on a connection that stays the caller's: see [Open].
func New(ctx context.Context, js jetstream.JetStream, opts ...Option) (*Engine, error) {
	guard.RefuseNil("jetstream: New", "JetStream", js)
	return newEngine(ctx, js, newSettings("New", opts))
}

func newEngine(ctx context.Context, js jetstream.JetStream, set *settings) (s *Engine, err error) {
	err = set.again(ctx, func(ctx context.Context) error {
		s, err = openEngine(ctx, js, set)
		return err
	})
	return s, err
}

// again calls f until it succeeds, or its error is lasting.
func (set *settings) again(ctx context.Context, f func(ctx context.Context) error) error {
	now := clock.New()
	begun, pause := now.Now(), firstWait
	var unplaced time.Time // since when the servers find no place, or zero
	for {
		try, cancel := context.WithTimeout(ctx, oneTry)
		err := f(try)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case !passing(err) || now.Since(begun) >= openWait:
			return err
		case !isUnplaced(err):
			unplaced = time.Time{}
		case unplaced.IsZero():
			unplaced = now.Now()
		case now.Since(unplaced) >= placeWait:
			return fmt.Errorf("%w; waited %v for more servers to join", err, placeWait)
		}
		text := "jetstream: the servers are not ready; retrying"
		if isUnplaced(err) {
			text = "jetstream: the cluster has too few servers for the stream; waiting up to 30s for more to join"
		}
		set.logger.LogAttrs(ctx, slog.LevelWarn, text,
			slog.Any("error", err), slog.Duration("wait", pause))
		if ended := wait.For(ctx, now, pause); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
		pause = min(2*pause, lastWait)
	}
}

// isUnplaced reports whether the servers find no place for a stream's replicas. Servers
// that have just started return the same error as a cluster that is too small.
func isUnplaced(err error) bool {
	const noPeers = 10005
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == noPeers
}

func passing(err error) bool {
	api, refused := errors.AsType[*jetstream.APIError](err)
	_, file := errors.AsType[*fs.PathError](err) // of certificates or credentials
	switch {
	case file:
		return false
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, errDoesNotFit):
		return false
	case isUnplaced(err):
		return true
	case refused:
		return api.Code == 503 && api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabled && api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabledForAccount
	}
	_, network := errors.AsType[timeoutError](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrDisconnected) ||
		errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}

// timeoutError is implemented by errors of package net and nats.go.
type timeoutError interface {
	error
	Timeout() bool
}

func openEngine(ctx context.Context, js jetstream.JetStream, set *settings) (*Engine, error) {
	stream, err := openStream(ctx, js, set)
	if err != nil {
		return nil, fmt.Errorf("jetstream: stream %s: %w", set.stream, err)
	}
	if err := fits(stream.CachedInfo().Config); err != nil {
		return nil, fmt.Errorf("jetstream: stream %s %w: %w", set.stream, errDoesNotFit, err)
	}
	s := &Engine{
		js: js, stream: stream, name: set.stream, prefix: root + set.stream + ".", clock: clock.New(), logger: set.logger,
		indexes: map[string]*index{}, opening: map[string]chan struct{}{}, named: map[string]time.Time{}, known: map[string]*recordNames{},
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	return s, nil
}

func openStream(ctx context.Context, js jetstream.JetStream, set *settings) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, set.stream)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	if set.existingStream {
		return nil, fmt.Errorf("%w: an administrator makes it, from the answer of StreamConfig(%q)", err, set.stream)
	}
	c := StreamConfig(set.stream)
	c.Replicas = set.replicas
	if set.change != nil {
		set.change(&c)
	}
	stream, err = js.CreateStream(ctx, c)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return js.Stream(ctx, set.stream) // another process was faster
	}
	if isUnplaced(err) {
		return nil, noPlace(c, err)
	}
	if err != nil {
		return nil, err
	}
	has := stream.CachedInfo().Config
	set.logger.LogAttrs(ctx, slog.LevelInfo, "jetstream: made the stream of queues", slog.String("stream", set.stream),
		slog.Int("replicas", has.Replicas), slog.Int64("max bytes", has.MaxBytes), slog.Int64("max messages", has.MaxMsgs),
		slog.Duration("duplicates", has.Duplicates))
	return stream, nil
}

func noPlace(c jetstream.StreamConfig, err error) error {
	wants := fmt.Sprintf("%d replicas (WithReplicas)", max(1, c.Replicas))
	if p := c.Placement; p != nil {
		if p.Cluster != "" {
			wants += fmt.Sprintf(" in the cluster %q", p.Cluster)
		}
		if len(p.Tags) > 0 {
			wants += fmt.Sprintf(" on servers with the tags %q", p.Tags)
		}
		wants += " (Placement in WithStreamConfig)"
	}
	return fmt.Errorf("the servers that are up have no place for %s: %w", wants, err)
}

var errDoesNotFit = errors.New("does not fit")

func fits(has jetstream.StreamConfig) error {
	want := StreamConfig(has.Name)
	switch {
	case !slices.Equal(has.Subjects, want.Subjects):
		return fmt.Errorf("its subjects must be %s", want.Subjects[0])
	case has.MaxMsgsPerSubject != 1:
		return errors.New("MaxMsgsPerSubject must be 1")
	case has.Discard != want.Discard || has.MaxAge != 0 || has.Retention != want.Retention:
		return errors.New("its Retention must be limits, MaxAge 0 and Discard new")
	case has.DiscardNewPerSubject || has.SubjectDeleteMarkerTTL != 0:
		return errors.New("DiscardNewPerSubject must be false, and SubjectDeleteMarkerTTL 0")
	case !has.AllowAtomicPublish || !has.AllowMsgTTL:
		return errors.New("it must allow atomic publishing and TTLs of messages")
	case has.MaxMsgSize > 0: // law W2: in a transaction the server does not report a message as too large
		return errors.New("MaxMsgSize must not be set: max_payload of the servers is the bound")
	case has.AllowDirect:
		return errors.New("it must not allow direct reads, which may be behind")
	}
	return nil
}
