package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/internal/guard"
)

// lookEvery is the interval of looking for missing topics, and the timeout of each look.
// A topic that brokers create on request exists by then.
const lookEvery = 3 * time.Second

// watchTopics logs which topics a consumer waits for, at each tick of look, and returns
// when all exist. The client waits silently, also for brokers.
func watchTopics(ctx context.Context, client *kgo.Client, look *clock.Ticker, logger *slog.Logger, topics []string) {
	defer look.Stop()
	if regex, _ := client.OptValue(kgo.ConsumeRegex).(bool); regex {
		return // they are patterns
	}
	logged := map[string]bool{}
	warn := func(key, text string, args ...any) {
		if !logged[key] {
			logged[key] = true
			logger.Warn("weir: kafka: "+text, args...)
		}
	}
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		missing, err := missingTopics(ctx, client, topics)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			warn("", "the brokers do not answer; the client keeps trying", "error", err)
		case len(missing) == 0:
			if len(logged) > 0 {
				logger.Info("weir: kafka: all topics exist now", "topics", topics)
			}
			return
		}
		for _, topic := range missing {
			warn(topic, "the topic does not exist; its records are read when it has been created", "topic", topic)
		}
	}
}

// missingTopics returns the topics that do not exist. A silent broker does not hide the
// answers of others.
func missingTopics(ctx context.Context, client *kgo.Client, topics []string) (missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	a, err := askAny(ctx, knownBrokers(client), func() kmsg.Request {
		req := kmsg.NewPtrMetadataRequest() // does not create topics by default
		for _, topic := range topics {
			t := kmsg.NewMetadataRequestTopic()
			t.Topic = new(topic)
			req.Topics = append(req.Topics, t)
		}
		return req
	})
	if err != nil {
		return nil, fmt.Errorf("looking for topics: %w", err)
	}
	for _, t := range a.resp.(*kmsg.MetadataResponse).Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case t.Topic == nil:
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			missing = append(missing, *t.Topic)
		case err != nil && isRefusal(err):
			return nil, guard.MarkPermanent(fmt.Errorf("the topic %q: %w", *t.Topic, lacking(err, "DESCRIBE on the topic, which READ and WRITE include")))
		}
	}
	return missing, nil
}
