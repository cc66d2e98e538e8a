package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wait"
)

const (
	firstWait = 100 * time.Millisecond // it doubles
	lastWait  = 10 * time.Second
	openWait  = 5 * time.Minute
)

// Open opens an engine on the brokers at an address such as
// kafka://broker-1:9092,broker-2:9092. Authentication and TLS are options of the client
// ([WithClientOptions]). It waits up to five minutes for brokers that do not answer; a
// refusal, such as of a wrong password, is an error at once. The engine has one client
// that puts, and one for each worker.
func Open(ctx context.Context, address string, opts ...Option) (*Engine, error) {
	brokers := strings.Split(strings.TrimSuffix(strings.TrimPrefix(address, "kafka://"), "/"), ",")
	for _, broker := range brokers {
		if host, _, err := net.SplitHostPort(broker); err != nil || host == "" || strings.ContainsAny(broker, "@/?") { // it may be a password
			return nil, errors.New("kafka: the address must be kafka://HOST:PORT,HOST:PORT; users and TLS are options of the client: WithClientOptions")
		}
	}
	set := newSettings(opts)
	set.client = append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, set.client...)
	p, err := newProducer(set.client)
	if err != nil {
		return nil, err
	}
	if err := awaitBrokers(ctx, p.client); err != nil {
		p.close()
		return nil, err
	}
	return &Engine{settings: set, producer: p, known: map[string]bool{}, open: map[*source]bool{}}, nil
}

func awaitBrokers(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	for pause := firstWait; ; pause = min(2*pause, lastWait) {
		try, enough := context.WithTimeout(ctx, lookEvery)
		err := Ping(try, client)
		enough()
		if err == nil {
			return nil
		}
		if refused := authentication(err); refused != nil {
			return refused
		}
		guard.Logger(nil).LogAttrs(ctx, slog.LevelWarn, "kafka: the brokers do not answer; retrying",
			slog.Any("error", err), slog.Duration("wait", pause))
		if ended := wait.For(ctx, clock.New(), pause); ended != nil {
			return fmt.Errorf("kafka: %w: %w", ended, err)
		}
	}
}
