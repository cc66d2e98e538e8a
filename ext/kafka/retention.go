package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// Settings of topics under which brokers remove records.
const (
	cleanupPolicy  = "cleanup.policy"
	retentionAge   = "retention.ms"
	retentionBytes = "retention.bytes"
)

type setting struct{ key, value string }

// newTopic returns the configuration of a new topic. Compaction would remove a message
// whose key is put again, and a limit in bytes would remove unread messages (law D5).
// Only dead letters are kept at any age: a topic that keeps its settled records would
// grow without end (law W3).
func newTopic(topic string) []setting {
	settings := []setting{{cleanupPolicy, "delete"}, {retentionBytes, "-1"}}
	if storearg.PartOf(topic).Role == storearg.RoleDead {
		settings = append(settings, setting{retentionAge, "-1"})
	}
	return settings
}

// required returns the settings that an existing topic must have. The limits of a queue's
// own topic are up to its owner.
func required(topic string) []setting {
	role := storearg.PartOf(topic).Role
	if role == storearg.RoleLayer || role == storearg.RoleDead {
		return newTopic(topic)
	}
	return []setting{{cleanupPolicy, "delete"}}
}

// check returns an error for topics whose configuration lets brokers remove messages (law
// D5). It logs a warning if the client may not read the configuration.
func (e *Engine) check(ctx context.Context, topics []string) error {
	admin := kadm.NewClient(e.producer.client)
	for _, topic := range topics {
		all, err := admin.DescribeTopicConfigs(ctx, topic)
		switch {
		case err == nil && len(all) == 0:
			err = kerr.UnknownTopicOrPartition
		case err == nil:
			err = all[0].Err
		}
		switch {
		case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
			guard.Logger(nil).LogAttrs(ctx, slog.LevelWarn, "kafka: cannot check that a topic keeps its messages: "+
				"the client needs the right DESCRIBE_CONFIGS on the topic", slog.String("topic", topic), slog.Any("error", err))
			continue
		case err != nil:
			return fmt.Errorf("kafka: reading the configuration of the topic %s: %w", topic, err)
		}
		if err := checkTopic(topic, all[0].Configs); err != nil {
			return err
		}
	}
	return nil
}

// checkTopic returns an error, with the command that changes the topic, if it would lose
// messages.
func checkTopic(topic string, configs []kadm.Config) error {
	values := map[string]string{}
	for _, config := range configs {
		values[config.Key] = config.MaybeValue()
	}
	var wrong, remedy []string
	for _, must := range required(topic) {
		value := values[must.key]
		if cmp.Or(value, must.value) != must.value { // an old broker may omit a key
			wrong = append(wrong, must.key+" is "+value)
			remedy = append(remedy, must.key+"="+must.value)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return guard.MarkPermanent(fmt.Errorf("kafka: the topic %s would lose messages, because %s: change it by kafka-configs.sh "+
		"--bootstrap-server HOST:PORT --alter --entity-type topics --entity-name %s --add-config %s",
		topic, strings.Join(wrong, " and "), topic, strings.Join(remedy, ",")))
}
