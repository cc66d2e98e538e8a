package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// topicsOf lets seedQueues put messages into topics.
type topicsOf struct {
	store.Store
	seed kgo.Opt
}

func (s topicsOf) Put(ctx context.Context, queue string, ms ...store.Message) error {
	v, err := kafka.OpenView(ctx, strings.ReplaceAll(queue, " ", "."), "", s.seed)
	if err != nil {
		return err
	}
	defer v.Close()
	return v.Put(ctx, ms...)
}

// startKafka starts a Kafka in memory with the topics of the queue orders, its layers,
// and two other queues, and returns its address. The group billing has consumed one
// message of a layer.
func startKafka(t *testing.T) (address string) {
	t.Helper()
	return startBrokers(t, 1)
}

// startBrokers starts the Kafka of startKafka with n brokers, and returns the address of
// the first one.
func startBrokers(t *testing.T, n int) (address string) {
	t.Helper()
	k, err := kfake.NewCluster(kfake.NumBrokers(n), kfake.SeedTopics(1, "orders-dead", "orders", "orders-retry-1", "orders-retry-2", "outbox", "bills"))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	seed := kgo.SeedBrokers(k.ListenAddrs()...)
	seedQueues(t, topicsOf{seed: seed}, func() {})
	client, err := kgo.NewClient(seed)
	require.NoError(t, err)
	defer client.Close()
	var at kadm.Offsets
	at.Add(kadm.Offset{Topic: "orders-retry-1", At: 1, LeaderEpoch: -1})
	at.Add(kadm.Offset{Topic: "orders-retry-2", At: 0, LeaderEpoch: -1})
	require.NoError(t, kadm.NewClient(client).CommitAllOffsets(t.Context(), "billing", at))
	return k.ListenAddrs()[0]
}

// Output of the read-only commands on Kafka.
func TestKafka(t *testing.T) {
	t.Parallel()
	url := "kafka://" + startKafka(t)
	for name, args := range map[string]string{
		"list":          "dead list --queue orders-dead",
		"list-80":       "dead list --queue orders-dead",
		"list-page":     "dead list --queue orders-dead --max 2 --after 3",
		"list-json":     "dead list --queue orders-dead --json --cause permanent --max 1",
		"list-layer":    "dead list --queue orders-retry-1 --db " + url + "?group=billing",
		"show":          "dead show --queue orders-dead orders/0/18",
		"show-none":     "dead show --queue orders-dead nothing",
		"count":         "dead count --queue orders-dead --provider north",
		"export":        "dead export --queue orders-dead --key customer-1",
		"layers":        "layers --db " + url + "?group=billing",
		"layers-json":   "layers --json orders-dead orders-retry-1",
		"layers-none":   "layers",
		"outbox":        "outbox",
		"requests":      "requests --all",
		"keys":          "keys orders",
		"no-topic":      "dead list --queue nothing",
		"purge-choice":  "dead purge --queue orders-dead --cause permanent",
		"purge-some":    "dead purge --queue orders-dead --all --max 2 --yes",
		"due":           "due --queue orders-dead --all --yes",
		"due-layer":     "due --queue orders-retry-1 later --yes --db " + url + "?group=billing",
		"hold":          "hold --queue orders-dead --all --yes",
		"purge-layer":   "dead purge --all --yes --queue orders-retry-1 --db " + url + "?group=billing",
		"merge-layer":   "dead merge --to orders --yes --queue orders-retry-1 --db " + url + "?group=billing",
		"merge-nowhere": "dead merge --queue orders-dead --to nowhere --yes",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, t.TempDir(), strings.Fields(args)...)
			cmd.Env = append(cmd.Env, "WEIR_DB="+url)
			if name == "list-80" {
				cmd.Env = append(cmd.Env, "COLUMNS=80")
			}
			r := execute(t, cmd)
			text := ofNow(fmt.Sprintf("$ weir %q\n%s---- stderr, status %d\n%s", args, r.stdout, r.status, r.stderr))
			golden(t, "kafka-"+name+".txt", strings.ReplaceAll(text, url, "URL"))
			assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", r.stdout+r.stderr, "control characters")
		})
	}
}

// The first broker in the URL accepts connections but never answers. With several other
// brokers the client asks it less often, for 10 s each time.
func TestKafka_FirstBrokerIsSilent(t *testing.T) {
	if !suite.Full() {
		t.Skip("takes 20 s of real time: WEIR_LONG=ci")
	}
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	url := "kafka://" + silent.Addr().String() + "," + startBrokers(t, 9)
	r := execute(t, command(t, t.TempDir(), "dead", "count", "--queue", "orders-dead", "--db", url))
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Regexp(t, `all +8\n`, r.stdout)
}

// If the group of a queue has not committed a position, all messages of the queue are
// waiting.
func TestLayers_GroupWithoutCommits(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "orders-retry-1", "orders-dead", "others"))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...))
	require.NoError(t, err)
	defer client.Close()
	for range 50 {
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("v")}).FirstErr())
	}
	layers := func(group string) result {
		return execute(t, command(t, t.TempDir(), "layers", "--db", "kafka://"+k.ListenAddrs()[0]+"?group="+group))
	}
	r := layers("orders")
	assert.Equal(t, 0, r.status, r.stderr)
	assert.Regexp(t, `orders +50 `, r.stdout)
	assert.Regexp(t, `orders-retry-1 +0 `, r.stdout)
	assert.NotContains(t, r.stdout, "others")
	r = layers("order")
	assert.Equal(t, 1, r.status)
	assert.Contains(t, r.stderr, `the group "order" has not committed a position, and no topic has its name`)
}

// Kafka keeps neither jobs nor workers, and the error names engines that do.
func TestWorkers_OnKafka(t *testing.T) {
	r := execute(t, command(t, t.TempDir(), "workers", "--db", "kafka://"+startKafka(t)))
	assert.Equal(t, exitUsage, r.status)
	assert.Contains(t, r.stderr, "keeps no jobs and no workers: they are in databases of sqlite:, postgres:// and nats://")
}

// Effects of the commands on Kafka.
func TestKafkaChanges(t *testing.T) {
	t.Parallel()
	url := "kafka://" + startKafka(t)
	run := func(args ...string) result { return execute(t, command(t, t.TempDir(), append(args, "--db", url)...)) }
	exported := run("dead", "export", "--queue", "orders-dead")
	assert.Equal(t, "8 messages written\n", exported.stderr)
	for _, args := range [][]string{{"due", "--queue", "orders-dead", "--all", "--yes"}, {"dead", "purge", "--queue", "orders-dead", "--all", "--max", "2", "--yes"}} {
		assert.Equal(t, exitUsage, run(args...).status, args)
	}
	assert.Regexp(t, `all +8\n`, run("dead", "count", "--queue", "orders-dead").stdout)
	r := run("dead", "merge", "--queue", "orders-dead", "--to", "bills", "--provider", "north", "--yes")
	assert.Equal(t, result{"", "weir: queue \"bills\" is empty or new, and no worker reads it now: if the program reads this queue, add --to-empty\n", exitUsage}, r)
	r = run("dead", "merge", "--queue", "orders-dead", "--to", "orders", "--provider", "north")
	assert.Equal(t, "weir: Send 3 messages of queue \"orders-dead\" back to \"orders\"? Standard input is no terminal: answer with --yes\n", r.stderr)
	assert.Equal(t, result{"2 messages sent back to \"orders\"\n", "", 0},
		run("dead", "merge", "--queue", "orders-dead", "--to", "orders", "--provider", "north", "--cause", "exhausted", "--rate", "1000", "--yes"))
	assert.Equal(t, result{`{"merged":4,"looping":1,"unsafeToRepeat":1,"lapsed":0,"busy":0}` + "\n", "", 0}, run("dead", "merge", "--queue", "orders-dead", "--to", "orders", "--yes", "--json"))
	assert.Regexp(t, `all +2\n`, run("dead", "count", "--queue", "orders-dead").stdout)
	assert.Regexp(t, `orders +6 `, run("layers", "orders").stdout)
	assert.Equal(t, result{"2 messages removed\n", "", 0}, run("dead", "purge", "--queue", "orders-dead", "--all", "--yes"))
	assert.Equal(t, result{"", "No message of queue \"orders-dead\" matches.\n", 0}, run("dead", "list", "--queue", "orders-dead"))

	file := filepath.Join(t.TempDir(), "dead.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(exported.stdout), 0o600))
	assert.Equal(t, result{"8 messages read\n", "", 0}, run("dead", "import", "--queue", "orders-dead", file))
	assert.Equal(t, exported.stdout, run("dead", "export", "--queue", "orders-dead").stdout)
}

// TLS with a client certificate, and both kinds of passwords. Errors contain no
// passwords.
func TestKafkaSecurity(t *testing.T) {
	ca, cert, key := certificates(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders-dead"), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}),
		kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "r1ght"), kfake.Superuser("SCRAM-SHA-256", "v", "r1ght"), kfake.Superuser("SCRAM-SHA-512", "w", "r1ght"))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	address := k.ListenAddrs()[0]
	files := "&ca=" + ca + "&cert=" + cert + "&key=" + key
	for url, want := range map[string]struct {
		status int
		error  string
	}{
		"kafka://u:r1ght@" + address + "?sasl=plain" + files:                     {exitOK, "No message"},
		"kafka://v:r1ght@127.0.0.1:1," + address + "?sasl=SCRAM-SHA-256" + files: {exitOK, "No message"},
		"kafka://w:r1ght@" + address + "?sasl=scram-sha-512&ca=" + ca:            {exitOK, "No message"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain" + files:                    {exitFailed, "is the password wrong?"},
		"kafka://w:s3cr3t@" + address + "?sasl=scram-sha-512" + files:            {exitFailed, "is the password wrong?"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain&tls=true":                   {exitFailed, "certificate"},
		"kafka://u:s3cr3t%2Fx@127.0.0.1:1?sasl=plain&plaintext=true":             {exitFailed, "127.0.0.1:1"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain":                            {exitUsage, "sasl=plain sends the password unencrypted"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain&tls=false":                  {exitUsage, "sasl=plain sends the password unencrypted"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain&plaintext=yes":              {exitUsage, "plaintext must be"},
		"kafka://u:s3cr3t@" + address + files:                                    {exitUsage, ""},
		"kafka://u:s3cr3t@" + address:                                            {exitUsage, "a user needs sasl"},
		"kafka://" + address + "?sasl=plain":                                     {exitUsage, "that needs a user"},
		"kafka://u:s3cr3t@" + address + "?sasl=gssapi":                           {exitUsage, "sasl must be"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain&tls=maybe":                  {exitUsage, "tls must be"},
		"kafka://u:s3cr3t@" + address + "?sasl=plain&tls=false" + files:          {exitUsage, "exclude each other"},
		"kafka://u:s3cr3t@" + address + "/dead?sasl=plain":                       {exitUsage, "--queue TOPIC"},
		"kafka://u:s3cr3t@" + address + "?password=s3cr3t":                       {exitUsage, `parameter "password"`},
		"kafka://u:s3cr3t/x@" + address + "?sasl=plain":                          {exitUsage, "not valid"},
	} {
		t.Run(want.error, func(t *testing.T) {
			t.Parallel()
			r := execute(t, command(t, t.TempDir(), "dead", "list", "--queue", "orders-dead", "--db", url))
			assert.Equal(t, want.status, r.status, "%s: %s", url, r.stderr)
			assert.Contains(t, r.stderr, want.error, url)
			assert.NotContains(t, r.stdout+r.stderr, "s3cr3t", url)
		})
	}
}

// A long export contains each message once.
func TestKafkaPages(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders-dead"))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	var ms []store.Message
	for i := range 2500 {
		ms = append(ms, store.Message{Meta: message.Meta{ID: fmt.Sprint("m", i), Key: fmt.Sprint(i % 10), LastFailure: time.Unix(1, 0)}, Cause: store.Permanent})
	}
	require.NoError(t, topicsOf{seed: kgo.SeedBrokers(k.ListenAddrs()...)}.Put(t.Context(), "orders-dead", ms...))
	r := execute(t, command(t, t.TempDir(), "dead", "export", "--queue", "orders-dead", "--db", "kafka://"+k.ListenAddrs()[0]))
	assert.Equal(t, "2500 messages written\n", r.stderr)
	for i := range 2500 {
		assert.Contains(t, r.stdout, fmt.Sprintf(`"id":"m%d"`, i))
	}
}
