package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka"
	"github.com/weirflow/weir/internal/storearg"
)

// openKafka connects to brokers:
//
//	kafka://user:password@host:9092,host:9092?sasl=scram-sha-512&tls=true&group=GROUP
func openKafka(ctx context.Context, address string) (*database, error) {
	u, err := parseServers(address, "group", "sasl", "plaintext", "tls", "ca", "cert", "key")
	if err != nil {
		return nil, err
	}
	if u.name != "" {
		return nil, usagef("the URL of the database: Kafka has no databases: topics are given as --queue TOPIC, the group of the workers as ?group=GROUP")
	}
	opts := []kgo.Opt{kgo.SeedBrokers(u.hosts...), kgo.ClientID("weir")}
	config, err := u.tls()
	switch use := u.query.Get("tls"); {
	case err != nil:
		return nil, err
	case use != "" && use != "true" && use != "false":
		return nil, usagef("the URL of the database: tls must be true or false")
	case use == "false" && config != nil:
		return nil, usagef("the URL of the database: tls=false and files for TLS exclude each other")
	case use == "true" && config == nil:
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config != nil {
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	login, err := u.sasl(config != nil)
	if err != nil {
		return nil, err
	}
	opts = append(opts, login...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := kafka.Ping(connecting, client); err != nil {
		client.Close()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the broker has ended the connection: is it another port, does it want TLS, or is the password wrong? %w", err)
		}
		return nil, fmt.Errorf("kafka: %w", err)
	}
	k := &topics{opts: opts, client: client, group: u.query.Get("group"), views: map[string]*kafka.View{}}
	return &database{store: k, closers: []func() error{k.close}}, nil
}

// sasl returns the login options. PLAIN sends the password unencrypted, so it needs TLS.
func (s servers) sasl(encrypted bool) ([]kgo.Opt, error) {
	plaintext := s.query.Get("plaintext")
	if plaintext != "" && plaintext != "true" && plaintext != "false" {
		return nil, usagef("the URL of the database: plaintext must be true or false")
	}
	name := strings.ToLower(s.query.Get("sasl"))
	if (s.user == nil) != (name == "") {
		return nil, usagef("the URL of the database: a user needs sasl=plain, scram-sha-256 or scram-sha-512, and that needs a user")
	}
	if s.user == nil {
		return nil, nil
	}
	user := s.user.Username()
	switch name {
	case "plain":
		if !encrypted && plaintext != "true" {
			return nil, usagef("the URL of the database: sasl=plain sends the password unencrypted: add tls=true, or plaintext=true if the network is safe")
		}
		return []kgo.Opt{kgo.SASL(plain.Auth{User: user, Pass: s.password}.AsMechanism())}, nil
	case "scram-sha-256":
		return []kgo.Opt{kgo.SASL(scram.Auth{User: user, Pass: s.password}.AsSha256Mechanism())}, nil
	case "scram-sha-512":
		return []kgo.Opt{kgo.SASL(scram.Auth{User: user, Pass: s.password}.AsSha512Mechanism())}, nil
	}
	return nil, usagef("the URL of the database: sasl must be plain, scram-sha-256 or scram-sha-512")
}

// topics are the queues on Kafka: topics of dead letters, and a group's topics.
type topics struct {
	opts    []kgo.Opt
	client  *kgo.Client
	group   string // group of the workers, or ""
	ofGroup []string
	looked  bool // ofGroup is set
	views   map[string]*kafka.View
}

// view opens a topic, once: all operations see it as it was then. For a topic of the
// group it shows the messages that the group has not settled.
func (k *topics) view(ctx context.Context, topic string) (*kafka.View, error) {
	if v := k.views[topic]; v != nil {
		return v, nil
	}
	group := ""
	if all, err := k.known(ctx); err != nil {
		return nil, err
	} else if slices.Contains(all, topic) {
		group = k.group
	}
	v, err := kafka.OpenView(ctx, topic, group, k.opts...)
	if err == nil {
		k.views[topic] = v
	}
	return v, err
}

// known returns the group's sorted topics: the topics with a commit of the group, and the
// topics of the queue named after the group.
func (k *topics) known(ctx context.Context) ([]string, error) {
	if k.group == "" || k.looked {
		return k.ofGroup, nil
	}
	offsets, err := kadm.NewClient(k.client).FetchOffsets(ctx, k.group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("the group %q: %w", k.group, err)
	}
	topics, err := kadm.NewClient(k.client).ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("the topics of the group %q: %w", k.group, err)
	}
	known := slices.Collect(maps.Keys(offsets))
	for topic := range topics {
		part := storearg.PartOf(topic)
		isRead := part.Queue == k.group && (part.Role == storearg.RoleMain || part.Role == storearg.RoleLayer)
		if _, committed := offsets[topic]; isRead && !committed {
			known = append(known, topic)
		}
	}
	slices.Sort(known)
	k.ofGroup, k.looked = known, true
	return k.ofGroup, nil
}

// Queues returns the group's topics.
func (k *topics) Queues(ctx context.Context) ([]string, error) {
	if k.group == "" {
		return nil, usagef("which topics? Name them, or the group of the workers in the URL: ?group=GROUP")
	}
	all, err := k.known(ctx)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("the group %q has not committed a position, and no topic has its name: check the name, or name the topics", k.group)
	}
	return all, err
}

// List implements queues.
func (k *topics) List(ctx context.Context, topic string, f store.Filter, p store.Page) ([]store.Entry, error) {
	v, err := k.view(ctx, topic)
	if err != nil {
		return nil, err
	}
	return v.List(ctx, f, p)
}

// Count implements queues.
func (k *topics) Count(ctx context.Context, topic string, f store.Filter) (store.Counts, error) {
	v, err := k.view(ctx, topic)
	if err != nil {
		return store.Counts{}, err
	}
	return v.Count(ctx, f)
}

// Put implements queues.
func (k *topics) Put(ctx context.Context, topic string, ms ...store.Message) error {
	v, err := k.view(ctx, topic)
	if err != nil {
		return err
	}
	return v.Put(ctx, ms...)
}

func (k *topics) matching(ctx context.Context, s jobs.Spec) (int, error) {
	switch {
	case s.Do != store.Merge && s.Do != store.Purge:
		return 0, usagef("a topic is a log: its messages cannot be held, and become due by their own time")
	case s.Do == store.Purge && (!isAll(s.Filter) || s.Max > 0 || s.Rate > 0):
		return 0, usagef("a topic is a log, which can only be cut off at its beginning: purge needs --all, without --max and --rate")
	}
	v, err := k.view(ctx, s.Queue)
	if err != nil {
		return 0, err
	}
	if s.Do == store.Purge && slices.Contains(k.ofGroup, s.Queue) {
		return 0, usagef("%q is a topic of the group %q, whose workers do what is there: purge is for dead letters", s.Queue, k.group)
	}
	if err := here(ctx, k, s.Queue, s.Filter); err != nil {
		return 0, err
	}
	n, err := v.Count(ctx, s.Filter)
	return n.Messages, err
}

func (k *topics) do(ctx context.Context, s jobs.Spec, leave bool, show func(jobs.Progress)) (job jobs.Job, err error) {
	if leave {
		return job, usagef("--detach: Kafka keeps no jobs")
	}
	v, err := k.view(ctx, s.Queue)
	if err != nil {
		return job, err
	}
	job.Spec = s
	switch s.Do {
	case store.Merge:
		job.Progress, err = v.Merge(ctx, s, show)
		if err != nil && ctx.Err() != nil {
			err = errAgain
		}
	case store.Purge:
		var n store.Counts
		n, err = v.Count(ctx, s.Filter)
		if err == nil && n.Messages > 0 {
			err = v.Purge(ctx)
		}
		job.Done = n.Messages
	default:
		err = fmt.Errorf("%q cannot be done to a topic", s.Do)
	}
	return job, err
}

// empty reports whether a topic never had a message. A merge reports a missing topic.
func (k *topics) empty(ctx context.Context, topic string) (bool, error) {
	ends, err := kadm.NewClient(k.client).ListEndOffsets(ctx, topic)
	if err != nil {
		return false, fmt.Errorf("the topic %q: %w", topic, err)
	}
	empty := true
	ends.Each(func(o kadm.ListedOffset) { empty = empty && o.Offset == 0 && o.Err == nil })
	return empty, nil
}

func (k *topics) close() error {
	for _, v := range k.views {
		v.Close()
	}
	k.client.Close()
	return nil
}
