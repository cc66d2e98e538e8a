package grpcstage_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/grpc/grpcstage"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	unaryMethod  = "/weir.test.Effects/Do"
	streamMethod = "/weir.test.Effects/Stream"
)

// service executes what it gets, and counts how often each element took effect. It
// refuses "code 5".
type service struct {
	mu      sync.Mutex
	effects map[string]int
	pause   time.Duration
}

func newService() *service { return &service{effects: map[string]int{}} }

// times returns how often the service has handled each element. Calls of servers that
// were killed may still run.
func (s *service) times() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.effects)
}

func (s *service) do(ctx context.Context, element string) error {
	var code codes.Code
	if _, err := fmt.Sscanf(element, "code %d", &code); err == nil {
		return status.Error(code, element)
	}
	s.mu.Lock()
	s.effects[element]++
	s.mu.Unlock()
	select { // after the effect: a call that is lost here has happened
	case <-ctx.Done():
	case <-time.After(s.pause):
	}
	return nil
}

func (s *service) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "weir.test.Effects",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Do",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := &wrapperspb.StringValue{}
				if err := decode(in); err != nil {
					return nil, err
				}
				return in, s.do(ctx, in.Value)
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Stream", ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				in := &wrapperspb.StringValue{}
				if err := stream.RecvMsg(in); err != nil {
					return err
				}
				if err := s.do(stream.Context(), in.Value); err != nil {
					return err
				}
				return stream.SendMsg(in)
			},
		}},
	}
}

// server can be killed and started again.
type server struct {
	t       *testing.T
	service *service
	address string
	running *grpc.Server
	served  chan struct{}
	options []grpc.ServerOption
}

func startServer(t *testing.T, service *service, options ...grpc.ServerOption) *server {
	s := &server{t: t, service: service, options: options}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) start() {
	var l net.Listener
	if s.address == "" { // the first time
		l, s.address = listen(s.t)
	} else {
		var err error
		l, err = net.Listen("tcp", s.address)
		require.NoError(s.t, err)
	}
	s.running, s.served = grpc.NewServer(s.options...), make(chan struct{})
	s.running.RegisterService(s.service.desc(), s)
	go func(running *grpc.Server, served chan struct{}) {
		defer close(served)
		_ = running.Serve(l) // until it is stopped
	}(s.running, s.served)
}

// listen listens on a port below the range of outgoing connections, so that the port is
// free when the server restarts.
func listen(t *testing.T) (l net.Listener, address string) {
	t.Helper()
	for try := 0; ; try++ {
		address = "127.0.0.1:" + strconv.Itoa(12_000+rand.IntN(20_000))
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l, address
		}
		require.Less(t, try, 100, "%v", err)
	}
}

// kill closes all connections at once. It may be called twice.
func (s *server) kill() {
	s.running.Stop()
	<-s.served
}

// handed notes which elements gRPC has handed to a connection: the message, or the header
// of a stream. gRPC does not report what the connection did with it.
type handed struct {
	mu       sync.Mutex
	elements map[string]bool
}

func (h *handed) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (h *handed) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (h *handed) HandleConn(context.Context, stats.ConnStats)                       {}

func (h *handed) HandleRPC(ctx context.Context, event stats.RPCStats) {
	header, ok := event.(*stats.OutHeader)
	if _, payload := event.(*stats.OutPayload); payload || ok && header.FullMethod == streamMethod {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.elements[ctx.Value(elementKey{}).(string)] = true
	}
}

// has reports whether a call for the element was handed to the network.
func (h *handed) has(element string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.elements[element]
}

type elementKey struct{}

func dial(t *testing.T, address string, options ...grpc.DialOption) *grpc.ClientConn {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+address, append(options, grpcstage.DialOptions()...)...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func do(ctx context.Context, conn *grpc.ClientConn, element string, options ...grpc.CallOption) error {
	return conn.Invoke(ctx, unaryMethod, wrapperspb.String(element), &wrapperspb.StringValue{}, options...)
}

func doByStream(ctx context.Context, conn *grpc.ClientConn, element string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, streamMethod)
	if err != nil {
		return err
	}
	if err := s.SendMsg(wrapperspb.String(element)); err != nil && status.Code(err) != codes.Unknown { // io.EOF: see RecvMsg
		return err
	}
	return s.RecvMsg(&wrapperspb.StringValue{})
}

// run sends each element through an operator whose calls must not happen twice.
func run(t *testing.T, elements []string, call func(ctx context.Context, element string) error, each func(done int),
) (emitted int, failures []asyncop.Failure[string]) {
	t.Helper()
	op := asyncop.UnorderedWaitWithRetry(
		asyncop.Blocking(func(ctx context.Context, in string) (string, error) { return in, call(ctx, in) }),
		time.Minute, 64, strategies.ReasonAware(grpcretry.Classifier[string](status.Code), nil),
		asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)),
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			failures = append(failures, f)
			return nil
		}))
	for _, err := range op.Results(slices.Values(elements)) {
		require.NoError(t, err)
		emitted++
		each(emitted)
	}
	return emitted, failures
}

// Calls that must not happen twice, to a server that is killed again and again: executed
// calls are not repeated, and calls that were never sent do not fail.
func TestCallsToADyingServer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const n = 2000
	for name, call := range map[string]func(ctx context.Context, conn *grpc.ClientConn, element string) error{
		"unary":  func(ctx context.Context, conn *grpc.ClientConn, element string) error { return do(ctx, conn, element) },
		"stream": doByStream,
	} {
		t.Run(name, func(t *testing.T) {
			service := newService()
			service.pause = time.Millisecond
			server := startServer(t, service)
			sent := &handed{elements: map[string]bool{}}
			conn := dial(t, server.address, grpc.WithStatsHandler(sent))
			var elements []string
			for i := range n {
				elements = append(elements, fmt.Sprintf("element-%05d", i))
			}
			emitted, failures := run(t, elements, func(ctx context.Context, element string) error {
				return call(context.WithValue(ctx, elementKey{}, element), conn, element)
			}, func(done int) {
				if done%200 == 100 {
					server.kill()
					server.start()
				}
			})
			assert.Equal(t, n, emitted+len(failures))
			needless := 0
			effects := service.times()
			for _, f := range failures {
				if !sent.has(f.Element) {
					needless++
				}
				if !f.UnsafeToRepeat() {
					assert.Zero(t, effects[f.Element], "said to be without effect: %v", f.Err)
				}
			}
			assert.Zero(t, needless, "of %d failures", len(failures))
			for element, times := range effects {
				assert.Equal(t, 1, times, element)
			}
			t.Logf("%d calls, %d failed in flight", n, len(failures))
		})
	}
}

// stageOf returns the stage at which a call failed with err.
func stageOf(t *testing.T, err error) predicates.Stage {
	t.Helper()
	require.Error(t, err)
	return decision.StageOf(err, predicates.Unreported)
}

func reasonOf(err error) predicates.Reason {
	reason, ok := grpcretry.Classifier[int](status.Code)(&predicates.Attempt[int]{Err: err})
	if !ok {
		return predicates.Reason{}
	}
	return reason
}

func TestStages(t *testing.T) {
	service := newService()
	server := startServer(t, service, grpc.MaxRecvMsgSize(1000))
	conn := dial(t, server.address)
	require.NoError(t, do(t.Context(), conn, "a"))
	require.NoError(t, doByStream(t.Context(), conn, "a"))

	for _, call := range []func(ctx context.Context, conn *grpc.ClientConn, element string) error{
		func(ctx context.Context, conn *grpc.ClientConn, element string) error { return do(ctx, conn, element) }, doByStream,
	} {
		err := call(t.Context(), conn, "code 5")
		assert.Equal(t, predicates.ResponseReceived, stageOf(t, err))
		assert.Equal(t, codes.NotFound, status.Code(err))
		assert.Equal(t, grpcretry.NotFound, reasonOf(err))
		err = call(t.Context(), conn, "code 14")
		assert.Equal(t, predicates.ResponseReceived, stageOf(t, err))
		assert.Equal(t, grpcretry.Unavailable, reasonOf(err), "of the server, which may have had it from another")

		over, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		assert.Equal(t, netretry.NotSent, reasonOf(call(over, conn, "b")))
		cancel()

		nobody, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		nobody.Close()
		err = call(t.Context(), dial(t, nobody.Addr().String()), "b")
		assert.Equal(t, predicates.ClientDispatch, stageOf(t, err))
		assert.Equal(t, netretry.NotSent, reasonOf(err))
	}

	// A message that is too large for the client, or for the server, is so at each
	// attempt.
	large := strings.Repeat("x", 2000)
	err := do(t.Context(), conn, large, grpc.MaxCallSendMsgSize(1000))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Equal(t, predicates.ClientDispatch, stageOf(t, err))
	assert.Equal(t, predicates.Reason{}, reasonOf(err))
	err = do(t.Context(), conn, large)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.NotEqual(t, predicates.ClientDispatch, stageOf(t, err))
	assert.Equal(t, predicates.Reason{}, reasonOf(err))
	err = do(t.Context(), conn, "code 8")
	assert.Equal(t, grpcretry.ResourceExhausted, reasonOf(err), "a quota")

	service.pause = time.Minute
	gone := make(chan error)
	go func() { gone <- do(context.Background(), conn, "lost") }()
	require.Eventually(t, func() bool {
		service.mu.Lock()
		defer service.mu.Unlock()
		return service.effects["lost"] == 1
	}, time.Minute, time.Millisecond)
	server.kill()
	err = <-gone
	assert.Equal(t, predicates.NetworkTime, stageOf(t, err))
	assert.Equal(t, grpcretry.Unavailable, reasonOf(err))
}

// A function that makes two calls: the first is not repeated because the second was not
// sent.
func TestServer_TwoCalls(t *testing.T) {
	service := newService()
	up := dial(t, startServer(t, service).address)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	down := dial(t, l.Addr().String())

	for first, want := range map[string]struct {
		calls   int
		inDoubt bool
	}{
		"done":    {1, true},
		"code 9":  {2, false}, // refused, for which the function has another way
		"code 13": {1, true},  // who knows
		"":        {2, false}, // there is no first one
	} {
		calls := 0
		_, failures := run(t, []string{"x"}, func(ctx context.Context, _ string) error {
			if calls++; calls > 1 {
				return nil
			}
			if first != "" {
				_ = do(ctx, up, first)
			}
			return do(ctx, down, "second")
		}, func(int) {})
		assert.Equal(t, want.calls, calls, first)
		assert.Equal(t, want.inDoubt, len(failures) == 1 && failures[0].UnsafeToRepeat(), first)
	}
}

// second calls then at the beginning of the second attempt that gRPC makes of a call.
type second struct {
	handed
	begun int
	then  func()
}

func (s *second) HandleRPC(_ context.Context, event stats.RPCStats) {
	if e, ok := event.(*stats.Begin); ok && !e.IsTransparentRetryAttempt {
		if s.begun++; s.begun == 2 {
			s.then()
		}
	}
}

// By its service config gRPC repeats a call itself: if its first attempt was sent, the
// call counts as sent, even if there is no connection for the second.
func TestAttemptsOfGRPC(t *testing.T) {
	server := startServer(t, newService())
	var conn *grpc.ClientConn
	attempts := &second{then: func() {
		server.kill()
		for conn.GetState() == connectivity.Ready {
			conn.WaitForStateChange(t.Context(), connectivity.Ready)
		}
	}}
	conn = dial(t, server.address, grpc.WithStatsHandler(attempts), grpc.WithDefaultServiceConfig(`{"methodConfig": [{
		"name": [{}],
		"retryPolicy": {"maxAttempts": 2, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
			"retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	err := do(t.Context(), conn, "code 14")
	assert.Equal(t, 2, attempts.begun)
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Equal(t, predicates.NetworkTime, stageOf(t, err))
	assert.Equal(t, grpcretry.Unavailable, reasonOf(err))
}
