package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/internal/guard"
)

// allowed are the rights that each part needs. docs/reference/permissions.md is made of
// it and of the comments in it.
var allowed = map[string][]string{
	// A worker of the queue "orders", which is the group "orders" as well. It needs WRITE
	// on each of its layers, too. Without DESCRIBE_CONFIGS on its topics it cannot check
	// that they keep all messages, and logs a warning.
	"worker": {"READ topic orders", "READ group orders", "WRITE topic orders-dead"},
	// A program that puts into the queue "orders". DESCRIBE_CONFIGS as for a worker.
	"put": {"WRITE topic orders"},
	// The engine makes missing topics, such as the topics of the queue "new".
	"topics": {"CREATE topic new", "WRITE topic new"},
	// An input of a pipeline from a partition of the topic "orders".
	"input": {"READ topic orders"},
	// An output of a pipeline into the topic "receipts" with the transactional id
	// "billing-0".
	"output": {"READ topic receipts", "WRITE topic receipts", "READ group billing-0", "WRITE transactional-id billing-0"},
	// A Group with the name "billing" that shares out the partitions of the topic
	// "orders".
	"group": {"READ topic orders", "READ group billing"},
	// The command weir, and OpenView: a look at dead letters.
	"view": {"READ topic orders-dead", "READ group weir-merge-orders-dead"},
	// A merge of dead letters into the topic "orders".
	"merge": {
		"READ topic orders-dead", "READ group weir-merge-orders-dead", "DELETE topic orders-dead", "WRITE topic orders",
		"WRITE transactional-id weir-merge-orders-dead",
	},
	// A purge of dead letters.
	"purge": {"READ group weir-merge-orders-dead", "DELETE topic orders-dead"},
}

// doing has a function for each part that needs its rights.
var doing = map[string]func(ctx context.Context, client ...kgo.Opt) error{
	"worker": func(ctx context.Context, client ...kgo.Opt) error {
		return withEngine(ctx, client, func(e *Engine) error {
			s := delivery.NewQueue[string](e, "orders", delivery.WithLogger(silent), delivery.WithCodec(codec.JSON[string]())).Source(nil)
			ms, err := s.Receive(ctx, 1)
			if err == nil {
				ms[0].Reject(errors.New("no"))
			}
			return errors.Join(err, s.Close(ctx))
		})
	},
	"put": func(ctx context.Context, client ...kgo.Opt) error {
		return withEngine(ctx, client, func(e *Engine) error { return delivery.NewQueue[string](e, "orders").Put(ctx, "v") })
	},
	"topics": func(ctx context.Context, client ...kgo.Opt) error {
		return withEngine(ctx, client, func(e *Engine) error { return delivery.NewQueue[string](e, "new").Put(ctx, "v") }, WithPartitions(1), WithReplicas(1))
	},
	"input": func(ctx context.Context, client ...kgo.Opt) error {
		in, err := openInput(ctx, InputConfig[string]{Client: client, Topic: "orders", Decode: func(r *kgo.Record) (string, error) { return string(r.Value), nil }})
		if err != nil {
			return err
		}
		if err = in.Wait(ctx); err == nil {
			_, err = in.Next()
		}
		return errors.Join(err, in.Close())
	},
	"output": func(ctx context.Context, client ...kgo.Opt) error {
		out, err := newOutput(OutputConfig[string]{
			Client: client, Topic: "receipts", TransactionalID: "billing-0", Encode: func(v string) (*kgo.Record, error) { return kgo.StringRecord(v), nil },
		})
		if err != nil {
			return err
		}
		defer out.Close()
		if err := out.Write(ctx, "v"); err != nil {
			return err
		}
		state, err := out.Prepare(ctx)
		if err != nil {
			return err
		}
		return out.Commit(ctx, state)
	},
	"group": func(ctx context.Context, client ...kgo.Opt) error {
		done, enough := context.WithCancelCause(ctx)
		defer enough(nil)
		g := &Group{Client: client, Name: "billing", Topics: []string{"orders"}, Logger: silent}
		err := g.Run(done, given(func() { enough(errDone) }))
		if errors.Is(context.Cause(done), errDone) {
			return nil
		}
		return err
	},
	"view": ofView(func(ctx context.Context, v *View) error { _, err := v.List(ctx, store.Filter{}, allOfIt); return err }),
	"merge": ofView(func(ctx context.Context, v *View) error {
		_, err := v.Merge(ctx, jobs.Spec{To: "orders", Max: 1}, nil)
		return err
	}),
	"purge": ofView(func(ctx context.Context, v *View) error { return v.Purge(ctx) }),
}

var errDone = errors.New("done")

func ofView(do func(ctx context.Context, v *View) error) func(ctx context.Context, client ...kgo.Opt) error {
	return func(ctx context.Context, client ...kgo.Opt) error {
		v, err := OpenView(ctx, "orders-dead", "", client...)
		if err != nil {
			return err
		}
		defer v.Close()
		return do(ctx, v)
	}
}

func withEngine(ctx context.Context, client []kgo.Opt, do func(*Engine) error, opts ...Option) error {
	e, err := Open(ctx, "kafka://nowhere:1", append(opts, WithClientOptions(client...))...) // the address of the client is used
	if err != nil {
		return err
	}
	return errors.Join(do(e), e.Close())
}

// given is a handler that reports each assignment of a partition.
type given func()

func (f given) Assigned(context.Context, string, uint64) error { f(); return nil }
func (f given) Revoked(context.Context, string) error          { return nil }
func (f given) Lost(string)                                    {}

// withLogins returns a cluster where users log in, and the address for them. Others may
// do everything.
func withLogins(t *testing.T, users []string) (c *cluster, login kgo.Opt) {
	t.Helper()
	if clustertest.Libs() == "" {
		opts := []kfake.Opt{kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "p")}
		for _, u := range users {
			opts = append(opts, kfake.User("PLAIN", u, "s3cr3t"))
		}
		k, err := kfake.NewCluster(opts...)
		require.NoError(t, err)
		t.Cleanup(k.Close)
		c = &cluster{t: t, fake: k, addrs: k.ListenAddrs()}
		c.admin = c.client(kgo.SASL(plain.Auth{User: "admin", Pass: "p"}.AsMechanism()))
		return c, c.seed()
	}
	known := ""
	for _, u := range users {
		known += fmt.Sprintf(" user_%s=\"s3cr3t\"", u)
	}
	all := ownBrokers(t, 1,
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT", "sasl.enabled.mechanisms=PLAIN",
		"listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"+known+";",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users=User:ANONYMOUS")
	return clusterOf(t, all), kgo.SeedBrokers(all[0].Login)
}

// allow gives a user rights such as "READ topic orders".
func (c *cluster) allow(user string, rights []string) {
	c.t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, right := range rights {
		var op, kind, name string
		_, err := fmt.Sscan(right, &op, &kind, &name)
		require.NoError(c.t, err)
		acl := kmsg.NewCreateACLsRequestCreation()
		acl.ResourceName, acl.ResourcePatternType = name, kmsg.ACLResourcePatternTypeLiteral
		acl.ResourceType = must(kmsg.ParseACLResourceType(strings.ReplaceAll(kind, "-", "_")))
		acl.Operation = must(kmsg.ParseACLOperation(op))
		acl.Principal, acl.Host, acl.PermissionType = "User:"+user, "*", kmsg.ACLPermissionTypeAllow
		req.Creations = append(req.Creations, acl)
	}
	resp, err := req.RequestWith(c.t.Context(), c.admin)
	require.NoError(c.t, err)
	for _, r := range resp.Results {
		require.NoError(c.t, kerr.ErrorForCode(r.ErrorCode))
	}
}

// Each part can work with the listed rights. If any of these rights is missing, the error
// names it, and is permanent if the part would retry otherwise.
func TestPermissions(t *testing.T) {
	t.Parallel()
	var users []string
	for part, rights := range allowed {
		users = append(users, part)
		for i := range rights {
			users = append(users, fmt.Sprint(part, i))
		}
	}
	c, login := withLogins(t, users)
	n := 0
	for part, rights := range allowed {
		n += len(rights) * len(rights)
		c.allow(part, rights)
		for i := range rights {
			c.allow(fmt.Sprint(part, i), slices.Delete(slices.Clone(rights), i, i+1))
		}
	}
	eventually(t, func() bool {
		acls, err := kadm.NewClient(c.admin).DescribeACLs(t.Context(), kadm.NewACLs().AnyResource().Allow().AllowHosts().Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternAny))
		return err == nil && len(acls) > 0 && len(acls[0].Described) == n
	}, "brokers know the rights")
	c.seedTopics(1, []string{"orders", "orders-dead", "receipts"})
	for range 5 {
		for _, topic := range []string{"orders", "orders-dead"} {
			require.NoError(t, c.admin.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(`"v"`)}).FirstErr())
		}
	}
	run := func(part, user string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		opts := append(quickly(), login, kgo.SASL(plain.Auth{User: user, Pass: "s3cr3t"}.AsMechanism()))
		err := doing[part](ctx, opts...)
		require.NoError(t, ctx.Err(), "%s: %v", user, err)
		return err
	}
	for _, part := range []string{"view", "merge", "purge", "worker", "put", "topics", "input", "output", "group"} { // while dead letters are there
		for i, right := range allowed[part] {
			err := run(part, fmt.Sprint(part, i))
			require.ErrorContains(t, err, "AUTHORIZATION_FAILED", "%s without %s", part, right)
			require.NotContains(t, err.Error(), "s3cr3t")
			if slices.Contains([]string{"worker", "put", "topics", "group"}, part) {
				assert.True(t, guard.IsPermanent(err), "%s without %s: %v", part, right, err)
				assert.ErrorContains(t, err, "needs the right", "%s without %s", part, right)
			}
		}
		require.NoError(t, run(part, part), part)
	}
}
