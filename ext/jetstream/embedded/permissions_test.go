package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/jscheckpoint"
	"github.com/weirflow/weir/message"
)

// allowed are the subjects that each part publishes to. docs/reference/permissions.md is
// made of it and of the comments in it. All subscribe to _INBOX.>.
var allowed = map[string][]string{
	// An engine in the stream RETRIES, and the command weir; with
	// $JS.API.STREAM.CREATE.RETRIES it makes the stream.
	"engine": ofEngine,
	// Locks of the engine alone, for another program.
	"locks": {"weir.store.RETRIES.>", "$JS.API.STREAM.INFO.RETRIES", "$JS.API.STREAM.MSG.GET.RETRIES"},
	// A source of the stream IN of another program, with the consumer "workers", whose
	// dead letters are in an engine in the stream RETRIES; with
	// $JS.API.CONSUMER.CREATE.IN.workers it makes the consumer.
	"source": {
		"$JS.API.STREAM.INFO.IN", "$JS.API.CONSUMER.INFO.IN.workers", "$JS.API.CONSUMER.MSG.NEXT.IN.workers", "$JS.ACK.IN.workers.>",
		"weir.store.RETRIES.>", "$JS.API.STREAM.INFO.RETRIES", "$JS.API.STREAM.MSG.GET.RETRIES", "$JS.API.STREAM.MSG.DELETE.RETRIES",
	},
	// A sink that publishes to the stream OUT of another program, whose subject is OUT.
	// Without $JS.API.STREAM.NAMES it waits for a subject that no stream has.
	"sink": {"OUT", "$JS.API.STREAM.INFO.OUT"},
	// Checkpoints in the stream CHECKPOINTS.
	"checkpoints": {
		"weir.checkpoints.CHECKPOINTS.>", "$JS.API.STREAM.INFO.CHECKPOINTS", "$JS.API.STREAM.MSG.GET.CHECKPOINTS", "$JS.API.STREAM.PURGE.CHECKPOINTS",
	},
	// An input of a pipeline from the stream LOG; WithEnd needs
	// $JS.API.STREAM.MSG.GET.LOG as well.
	"input": {
		"$JS.API.STREAM.INFO.LOG", "$JS.API.CONSUMER.CREATE.LOG.>", "$JS.API.CONSUMER.INFO.LOG.>", "$JS.API.CONSUMER.DELETE.LOG.>",
		"$JS.API.CONSUMER.MSG.NEXT.LOG.>",
	},
	// An output of a pipeline into the stream COPY, whose subject is COPY.
	"output": {"COPY", "$JS.API.STREAM.INFO.COPY", "$JS.API.STREAM.MSG.GET.COPY"},
}

var ofEngine = []string{
	"weir.store.RETRIES.>", "$JS.API.STREAM.INFO.RETRIES", "$JS.API.STREAM.MSG.GET.RETRIES", "$JS.API.STREAM.MSG.DELETE.RETRIES",
	"$JS.API.CONSUMER.CREATE.RETRIES.>", "$JS.API.CONSUMER.INFO.RETRIES.>", "$JS.API.CONSUMER.DELETE.RETRIES.>",
	"$JS.API.CONSUMER.MSG.NEXT.RETRIES.>",
}

// seldom are permissions that are needed only after errors, or for requests whose answers
// are not awaited.
var seldom = []string{
	"$JS.API.CONSUMER.INFO.RETRIES.>", "$JS.API.CONSUMER.INFO.LOG.>", "$JS.API.STREAM.MSG.GET.COPY", "$JS.API.STREAM.MSG.DELETE.RETRIES",
}

// doing has a function for each part that needs its permissions.
var doing = map[string]func(ctx context.Context, js jetstream.JetStream) error{
	"source": func(ctx context.Context, js jetstream.JetStream) error {
		e, err := openEngine(ctx, js, "RETRIES")
		if err != nil {
			return err
		}
		defer e.Close()
		s := weirjs.NewSource(js, codec.JSON[string](), sourceConfig(e, "IN", time.Minute))
		closing, cancel := context.WithCancel(context.Background())
		cancel()
		defer context.AfterFunc(ctx, func() { _ = s.Close(closing) })() // ends a Receive that waits for an answer
		ms, err := s.Receive(ctx, 1)
		if err == nil {
			ms[0].Reject(errors.New("no"))
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return errors.Join(err, s.Close(last))
	},
	"sink": func(ctx context.Context, js jetstream.JetStream) error {
		s := weirjs.NewSink(js, codec.JSON[string](), weirjs.SinkConfig{Stream: "OUT"})
		defer s.Close()
		return s.PutAll(ctx, []message.Message[string]{message.New("v", nil, nil)})
	},
	"engine": func(ctx context.Context, js jetstream.JetStream) error {
		s, err := openEngine(ctx, js, "RETRIES")
		if err != nil {
			return err
		}
		defer s.Close()
		var ms []store.Message
		for i := range 10 {
			ms = append(ms, store.Message{Meta: message.Meta{ID: fmt.Sprint(i)}})
		}
		if err := s.Put(ctx, "q", ms...); err != nil {
			return err
		}
		taken, err := s.Take(ctx, "q", 5, time.Minute)
		if err != nil {
			return err
		}
		if err := s.Done(ctx, taken[0].Lease, taken[1].Lease); err != nil {
			return err
		}
		if err := s.Move(ctx, store.Move{Lease: taken[2].Lease, Queue: "p", Message: taken[2].Message}); err != nil {
			return err
		}
		if err := s.Release(ctx, 0, taken[3].Lease); err != nil {
			return err
		}
		if _, err := s.Queues(ctx); err != nil {
			return err
		}
		_, err = s.Purge(ctx, "q", store.Filter{})
		return err
	},
	"locks": func(ctx context.Context, js jetstream.JetStream) error {
		s, err := openEngine(ctx, js, "RETRIES")
		if err != nil {
			return err
		}
		defer s.Close()
		locks := s.Locks()
		g, err := locks.Acquire(ctx, "l", "me", time.Minute)
		if err != nil {
			return err
		}
		if _, err := locks.Held(ctx, ""); err != nil {
			return err
		}
		if err := locks.Extend(ctx, g, time.Minute); err != nil {
			return err
		}
		return locks.Release(ctx, g)
	},
	"checkpoints": func(ctx context.Context, js jetstream.JetStream) error {
		s, err := jscheckpoint.Stores(js, "CHECKPOINTS", "g").Open(ctx, "p", 0)
		if err != nil {
			return err
		}
		for i := range uint64(20) { // older ones are removed
			if err := s.Save(ctx, &checkpoint.Snapshot{ID: uint64(time.Now().UnixNano()) + i}); err != nil {
				return err
			}
		}
		_, _, err = checkpoint.Latest(ctx, s)
		return errors.Join(err, s.Close())
	},
	"input": func(ctx context.Context, js jetstream.JetStream) error {
		in := jscheckpoint.NewInput(js, "LOG", codec.JSON[string](), jscheckpoint.InputConfig{})
		err := in.Seek(in.Position())
		if err == nil {
			err = in.(checkpoint.Waiter).Wait(ctx)
		}
		if err == nil {
			_, err = in.Next()
		}
		return errors.Join(err, in.Close())
	},
	"output": func(ctx context.Context, js jetstream.JetStream) error {
		out := jscheckpoint.NewOutput(js, "COPY", "COPY", codec.JSON[string]())
		if err := out.Write(ctx, "v"); err != nil {
			return err
		}
		state, err := out.Prepare(ctx)
		if err != nil {
			return err
		}
		return errors.Join(out.Commit(ctx, state), out.Close())
	},
}

// violations collects what a server has refused.
type violations struct {
	mu     sync.Mutex
	all    []string
	cancel context.CancelFunc
}

func (v *violations) note(_ *nats.Conn, _ *nats.Subscription, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, err.Error())
	v.cancel()
}

func (v *violations) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.all, "\n")
}

// A worker with the permissions that are listed can do its work, and without any of them
// the server's error, which the connection's error handler gets, names the subject.
func TestPermissions(t *testing.T) {
	t.Parallel()
	users := []*server.User{{Username: "admin", Password: "p"}}
	user := func(name string, subjects []string) {
		users = append(users, &server.User{Username: name, Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: subjects}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}})
	}
	for name, subjects := range allowed {
		user(name, subjects)
		for i := range subjects {
			user(fmt.Sprint(name, i), slices.Delete(slices.Clone(subjects), i, i+1))
		}
	}
	srv := start(t, t.TempDir(), func(o *server.Options) { o.Users, o.SyncAlways = users, false })
	js := connect(t, srv, nats.UserInfo("admin", "p"))
	retries, checkpoints := weirjs.StreamConfig("RETRIES"), jscheckpoint.StreamConfig("CHECKPOINTS")
	for _, c := range []jetstream.StreamConfig{
		{Name: "IN", Subjects: []string{"IN"}},
		{Name: "OUT", Subjects: []string{"OUT"}},
		{Name: "LOG", Subjects: []string{"LOG"}},
		{Name: "COPY", Subjects: []string{"COPY"}, AllowAtomicPublish: true},
		retries, checkpoints,
	} {
		_, err := js.CreateStream(t.Context(), c)
		require.NoError(t, err)
	}
	newConsumer(t, js, "IN", time.Minute)
	publish(t, js, "LOG", "a")
	for range 10 {
		publish(t, js, "IN", "a")
	}
	run := func(t *testing.T, name, user string) (error, *violations) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		v := &violations{cancel: cancel}
		js := connect(t, srv, nats.UserInfo(user, "p"), nats.ErrorHandler(v.note))
		err := doing[name](ctx, js)
		return err, v
	}
	for name, subjects := range allowed {
		t.Run(name, func(t *testing.T) {
			err, refused := run(t, name, name)
			require.Empty(t, refused.text())
			require.NoError(t, err)
			for i, subject := range subjects {
				if slices.Contains(seldom, subject) {
					continue
				}
				_, refused := run(t, name, fmt.Sprint(name, i))
				want := `Permissions Violation for Publish to "` + strings.TrimSuffix(subject, ">")
				assert.Eventually(t, func() bool { return strings.Contains(refused.text(), want) }, time.Minute, time.Millisecond, subject) // a handler gets it
			}
		})
	}
}
