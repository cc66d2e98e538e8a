package grpconce_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/ext/grpc/grpconce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/strategies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a server that notes the ids of requests, and answers as its test asks.
type peer struct {
	address string
	mu      sync.Mutex
	got     []string
	answer  func(ctx context.Context, method string) error
}

func newPeer(t *testing.T) *peer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &peer{address: l.Addr().String()}
	server := grpc.NewServer()
	desc := &grpc.ServiceDesc{ServiceName: "pay.v1.Payments", HandlerType: (*any)(nil)}
	for _, method := range []string{"Charge", "Refund", "Look"} {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{
			MethodName: method,
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := &wrapperspb.StringValue{}
				if err := decode(in); err != nil {
					return nil, err
				}
				return in, p.note(ctx, method)
			},
		})
	}
	desc.Streams = []grpc.StreamDesc{{StreamName: "Charges", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		return p.note(s.Context(), "Charges")
	}}}
	server.RegisterService(desc, p)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }() // until it is stopped
	t.Cleanup(func() { server.Stop(); <-served })
	return p
}

func (p *peer) note(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	line := method + ": none"
	if values := md.Get(exactlyonce.Header); len(values) > 0 {
		id, err := parseID(strings.Join(values, ", "))
		line = fmt.Sprintf("%s: %d %q attempt %d first %d %v", method, id.Sequence, id.Step, id.Attempt, id.First, err)
	}
	p.mu.Lock()
	p.got = append(p.got, line)
	answer := p.answer
	p.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, method)
}

func (p *peer) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func dial(t *testing.T, p *peer, methods ...string) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+p.address,
		append(grpconce.DialOptions(methods...), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func do(ctx context.Context, conn *grpc.ClientConn, method string) error {
	return conn.Invoke(ctx, "/pay.v1.Payments/"+method, wrapperspb.String("in"), &wrapperspb.StringValue{})
}

// Law X1: a recorded refusal proves that no attempt of the call had an effect. A refusal
// that the tracker does not keep may come from an interceptor in front of it.
func TestDialOptions_RecordedRefusal(t *testing.T) {
	p := newPeer(t)
	conn := dial(t, p, "/pay.v1.Payments/")
	for _, tt := range []struct {
		code   codes.Code
		kept   bool // the trailer
		result string
		want   bool // the call is not in doubt
	}{
		{codes.FailedPrecondition, true, oncewire.Replayed, true},
		{codes.InvalidArgument, true, "", true},
		{codes.FailedPrecondition, false, oncewire.Replayed, false},
		{codes.Unauthenticated, false, "", false},
		{codes.Unavailable, true, oncewire.Replayed, false},
		{codes.FailedPrecondition, false, oncewire.Stale, false},
	} {
		t.Run(fmt.Sprint(tt.code, tt.kept, tt.result), func(t *testing.T) {
			tracker := caller.NewTracker(caller.Config{})
			ctx := tracker.Accepted(t.Context(), nil, false)
			element, ok := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
			require.True(t, ok)
			p.answer = func(context.Context, string) error { return status.Error(codes.Unavailable, "lost") }
			require.Error(t, do(tracker.AttemptStarted(ctx, 1), conn, "Charge"))
			require.False(t, element.AllRefused())
			p.answer = func(ctx context.Context, _ string) error {
				if tt.kept {
					if err := grpc.SetTrailer(ctx, metadata.Pairs(oncewire.Kept, "true")); err != nil {
						return err
					}
				}
				if tt.result != "" {
					if err := grpc.SetTrailer(ctx, metadata.Pairs(oncewire.Result, tt.result)); err != nil {
						return err
					}
				}
				return status.Error(tt.code, "refused")
			}
			require.Error(t, do(tracker.AttemptStarted(ctx, 2), conn, "Charge"))
			require.Equal(t, tt.want, element.AllRefused())
		})
	}
}

func TestClientSendsIDs(t *testing.T) {
	p := newPeer(t)
	conn := dial(t, p, "/pay.v1.Payments/Charge", "/pay.v1.Payments/Refund", "/other.Service/")
	tracker := caller.NewTracker(caller.Config{})
	element := tracker.Accepted(t.Context(), nil, false)
	ctx := metadata.AppendToOutgoingContext(tracker.AttemptStarted(element, 1), "exactly-once", "copied from somewhere", "k", "v")
	require.NoError(t, do(ctx, conn, "Charge"))
	require.NoError(t, do(caller.WithStep(ctx, "back"), conn, "Refund"))
	require.NoError(t, do(ctx, conn, "Look"))
	require.NoError(t, do(t.Context(), conn, "Look"))
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/pay.v1.Payments/Charges")
	require.NoError(t, err)
	require.Error(t, s.RecvMsg(&wrapperspb.StringValue{})) // its end
	require.NoError(t, do(tracker.AttemptStarted(element, 2), conn, "Charge"))
	md, _ := metadata.FromOutgoingContext(ctx)
	require.Equal(t, []string{"copied from somewhere"}, md.Get("exactly-once"), "the caller's metadata stays as it is")
	want := []string{
		`Charge: 1 "" attempt 1 first 1 <nil>`, `Refund: 1 "back" attempt 2 first 1 <nil>`, `Look: none`, `Look: none`, `Charges: none`,
		`Charge: 1 "" attempt 3 first 1 <nil>`,
	}
	require.Equal(t, want, p.requests())

	for _, bad := range []context.Context{t.Context(), element, ctx} {
		err := do(bad, conn, "Charge")
		require.ErrorIs(t, err, caller.ErrNoID)
		stage, ok := errors.AsType[*predicates.StageError](err)
		require.True(t, ok)
		require.Equal(t, predicates.ClientDispatch, stage.Stage)
	}
	require.Equal(t, want, p.requests(), "nothing was sent")

	all := dial(t, p, "/pay.v1.Payments/")
	require.ErrorIs(t, do(t.Context(), all, "Look"), caller.ErrNoID)
}

func TestMethodsThatAreNone(t *testing.T) {
	for _, methods := range [][]string{{}, {""}, {"/"}, {"//"}, {"Charge"}, {"/Charge"}, {"pay.v1.Payments/Charge"}, {"/a/b", "/a/b/c"}} {
		require.Panics(t, func() { grpconce.DialOptions(methods...) }, "%q", methods)
	}
}

// charge is an element whose call must not happen twice.
type charge string

func (charge) Idempotent() bool { return false }

// A tracked call that was lost in flight is repeated without a setting, unless the
// attempt has sent another request, or the call is STALE (X1).
func TestTie(t *testing.T) {
	for name, tt := range map[string]struct {
		methods []string // as many calls; the last one is answered by code and result, the first time
		code    codes.Code
		result  string
		class   error
		retried bool
		inDoubt bool // if it is not retried
	}{
		"lost":                       {methods: []string{"Charge"}, code: codes.Unavailable, retried: true},
		"not tracked":                {methods: []string{"Look"}, code: codes.Unavailable, inDoubt: true},
		"after another":              {methods: []string{"Look", "Charge"}, code: codes.Unavailable, inDoubt: true},
		"before another":             {methods: []string{"Charge", "Look"}, code: codes.Unavailable, inDoubt: true},
		"two":                        {methods: []string{"Charge", "Refund"}, code: codes.Unavailable, retried: true},
		"refused":                    {methods: []string{"Charge"}, code: codes.NotFound},
		"failed precondition":        {methods: []string{"Charge"}, code: codes.FailedPrecondition},
		"a result that is none":      {methods: []string{"Charge"}, code: codes.FailedPrecondition, result: "what"},
		"a replayed refusal":         {methods: []string{"Charge"}, code: codes.FailedPrecondition, result: oncewire.Replayed},
		"stale":                      {methods: []string{"Charge"}, code: codes.FailedPrecondition, result: oncewire.Stale, class: exactlyonce.ErrStale, inDoubt: true},
		"stale, as the retried code": {methods: []string{"Charge"}, code: codes.Unavailable, result: oncewire.Stale, class: exactlyonce.ErrStale, inDoubt: true},
		"mismatch":                   {methods: []string{"Charge"}, code: codes.FailedPrecondition, result: oncewire.Mismatch, class: exactlyonce.ErrMismatch},
		"in progress":                {methods: []string{"Charge"}, code: codes.Unavailable, result: oncewire.InProgress, class: exactlyonce.ErrInProgress, retried: true},
		"full":                       {methods: []string{"Charge"}, code: codes.Unavailable, result: oncewire.Full, class: exactlyonce.ErrFull, retried: true},
		"invalid":                    {methods: []string{"Charge"}, code: codes.InvalidArgument, result: oncewire.Invalid, class: exactlyonce.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t)
			last := tt.methods[len(tt.methods)-1]
			answered := 0
			p.answer = func(ctx context.Context, method string) error {
				p.mu.Lock()
				defer p.mu.Unlock()
				if method != last {
					return nil
				}
				if answered++; answered > 1 {
					return nil
				}
				if tt.result != "" {
					if err := grpc.SetTrailer(ctx, metadata.Pairs(oncewire.Result, tt.result)); err != nil {
						return err
					}
				}
				return status.Error(tt.code, "answer")
			}
			conn := dial(t, p, "/pay.v1.Payments/Charge", "/pay.v1.Payments/Refund")
			tracker := caller.NewTracker(caller.Config{})
			var failures []asyncop.Failure[charge]
			var first error
			calls := 0
			op := asyncop.OrderedWaitWithRetry(
				asyncop.Blocking(func(ctx context.Context, in charge) (string, error) {
					calls++
					for i, method := range tt.methods {
						if err := do(caller.WithStep(ctx, fmt.Sprint(i)), conn, method); err != nil {
							first = err
							return "", err
						}
					}
					return string(in), nil
				}), time.Minute, 1, strategies.ReasonAware(predicates.Classifiers(grpcretry.Classifier[string](status.Code),
					predicates.ByException[string](func(err error) bool { return errors.Is(err, exactlyonce.ErrStale) }, predicates.Unknown)), nil),
				asyncop.WithObserver(tracker), asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[charge]) error {
					failures = append(failures, f)
					return nil
				}))
			emitted := 0
			for _, err := range op.Results(slices.Values([]charge{"a"})) {
				require.NoError(t, err)
				emitted++
			}
			if tt.retried {
				require.Equal(t, []int{2, 1, 0}, []int{calls, emitted, len(failures)}, "%v", failures)
			} else {
				require.Equal(t, []int{1, 0, 1}, []int{calls, emitted, len(failures)}, "%v", failures)
				require.Equal(t, tt.inDoubt, failures[0].UnsafeToRepeat(), "%v", failures[0].Err)
			}
			for _, class := range []error{
				exactlyonce.ErrStale, exactlyonce.ErrMismatch, exactlyonce.ErrInProgress, exactlyonce.ErrFull, exactlyonce.ErrInvalid,
			} {
				require.Equal(t, class == tt.class, errors.Is(first, class), class)
			}
			switch tt.class {
			case nil:
			case exactlyonce.ErrStale:
				require.Equal(t, codes.Unknown, status.Code(first), "its status would say that it had no effect")
			default:
				require.Equal(t, tt.code, status.Code(first))
				require.ErrorContains(t, first, tt.class.Error()+`: element 1, step "0": /pay.v1.Payments/Charge: rpc error`)
			}
		})
	}
}

// parseID reads an id.
func parseID(text string) (id exactlyonce.ID, err error) {
	err = id.UnmarshalText([]byte(text))
	return id, err
}
