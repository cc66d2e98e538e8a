package grpconce_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/grpc/grpconce"
)

var client = exactlyonce.NewClient()

// called is a server that calls its interceptor without a connection.
type called struct {
	interceptor grpc.UnaryServerInterceptor
	results     *server.Results
	method      string

	mu      sync.Mutex
	calls   int
	handler func(ctx context.Context, n int, in string) (any, error)
}

// anyone is the principal of a service with one client.
func anyone(context.Context) (string, error) { return "", nil }

func newCalled(t *testing.T, r server.Config, c grpconce.ServerConfig) *called {
	t.Helper()
	s := &called{results: server.NewResults(r), method: "/pay.v1.Payments/Charge"}
	s.interceptor = grpconce.UnaryServerInterceptor(s.results, c)
	t.Cleanup(func() { require.NoError(t, s.results.Close(context.Background())) })
	s.handler = func(_ context.Context, n int, in string) (any, error) {
		return wrapperspb.String(in + strings.Repeat("!", n)), nil
	}
	return s
}

// trailers is the stream of one call, which only keeps its trailer.
type trailers struct {
	grpc.ServerTransportStream
	md metadata.MD
}

func (s *trailers) SetTrailer(md metadata.MD) error {
	s.md = metadata.Join(s.md, md)
	return nil
}

// call makes an attempt and returns its reply and its trailer.
func (s *called) call(ctx context.Context, in string, ids ...string) (string, metadata.MD, error) {
	stream := &trailers{}
	ctx = grpc.NewContextWithServerTransportStream(ctx, stream)
	ctx = metadata.NewIncomingContext(ctx, metadata.MD{"exactly-once": ids, "user": {"alice"}})
	reply, err := s.interceptor(ctx, wrapperspb.String(in), &grpc.UnaryServerInfo{FullMethod: s.method},
		func(ctx context.Context, req any) (any, error) {
			s.mu.Lock()
			s.calls++
			n, handler := s.calls, s.handler
			s.mu.Unlock()
			return handler(ctx, n, req.(*wrapperspb.StringValue).Value)
		})
	if err != nil {
		return "", stream.md, err
	}
	return reply.(*wrapperspb.StringValue).Value, stream.md, nil
}

func callID(seq int64, attempt int) string {
	return exactlyonce.ID{Client: client, Sequence: seq, Attempt: attempt}.String()
}

func requireRefused(t *testing.T, md metadata.MD, err error, code codes.Code, result string, pushback ...string) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	if result == "" {
		require.Empty(t, md["exactly-once-result"])
	} else {
		require.Equal(t, []string{result}, md["exactly-once-result"])
	}
	require.Equal(t, pushback, md["grpc-retry-pushback-ms"])
}

// X1: the second attempt gets the reply of the first, marked; a call without an id passes
// through.
func TestServerReplays(t *testing.T) {
	s := newCalled(t, server.Config{}, grpconce.ServerConfig{Scope: anyone})
	reply, md, err := s.call(t.Context(), "a", callID(1, 1))
	require.NoError(t, err)
	require.Equal(t, "a!", reply)
	require.Empty(t, md)
	reply, md, err = s.call(t.Context(), "a", callID(1, 2))
	require.NoError(t, err)
	require.Equal(t, "a!", reply)
	require.Equal(t, metadata.MD{"exactly-once-result": {"replayed"}}, md)
	for n := 2; n < 4; n++ {
		reply, _, err = s.call(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "a"+strings.Repeat("!", n), reply)
	}
}

// Refusals have a code, the result in the trailer, and a pushback where the call may be
// repeated.
func TestServerRefuses(t *testing.T) {
	s := newCalled(t, server.Config{MaxRecords: 1}, grpconce.ServerConfig{
		Scope: anyone, Required: func(method string) bool { return strings.HasSuffix(method, "Charge") }, RetryAfter: 1500 * time.Millisecond,
	})
	for _, ids := range [][]string{{}, {""}, {"x"}, {callID(1, 1), callID(1, 1)}, {callID(0, 1)}} {
		_, md, err := s.call(t.Context(), "a", ids...)
		requireRefused(t, md, err, codes.InvalidArgument, "invalid")
	}
	require.Zero(t, s.calls)
	require.EqualValues(t, 5, s.results.Stats().Invalid)
	later := exactlyonce.ID{Client: client, Sequence: 2, Attempt: 1, First: 2}.String()
	_, _, err := s.call(t.Context(), "a", later)
	require.NoError(t, err)
	_, md, err := s.call(t.Context(), "a", callID(1, 1))
	requireRefused(t, md, err, codes.FailedPrecondition, "stale")
	_, md, err = s.call(t.Context(), "b", later)
	requireRefused(t, md, err, codes.FailedPrecondition, "mismatch")
	_, md, err = s.call(t.Context(), "a", callID(3, 1))
	requireRefused(t, md, err, codes.Unavailable, "full", "1500")
	s.method = "/pay.v1.Payments/Refund"
	_, md, err = s.call(t.Context(), "a", later)
	requireRefused(t, md, err, codes.FailedPrecondition, "mismatch")
	_, _, err = s.call(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, 2, s.calls)
}

// An attempt waits for the running attempt, ends with its context, or exceeds MaxWaiters.
func TestServerInProgress(t *testing.T) {
	s := newCalled(t, server.Config{MaxWaiters: 1}, grpconce.ServerConfig{Scope: anyone})
	entered, leave := make(chan context.Context, 1), make(chan struct{})
	s.handler = func(ctx context.Context, _ int, in string) (any, error) {
		entered <- ctx
		<-leave
		return wrapperspb.String(in), ctx.Err()
	}
	var wg sync.WaitGroup
	first, cancel := context.WithCancel(t.Context())
	wg.Go(func() { _, _, _ = s.call(first, "a", callID(1, 1)) })
	ctx := <-entered
	gone, cancelGone := context.WithCancel(t.Context())
	cancelGone()
	_, md, err := s.call(gone, "a", callID(1, 2))
	requireRefused(t, md, err, codes.Canceled, "")
	var reply string
	wg.Go(func() { reply, md, err = s.call(t.Context(), "a", callID(1, 3)) })
	require.Eventually(t, func() bool { return s.results.Stats().Waiting == 1 }, time.Minute, time.Millisecond)
	_, tooMany, tooManyErr := s.call(t.Context(), "a", callID(1, 4))
	requireRefused(t, tooMany, tooManyErr, codes.Unavailable, "in-progress", "1000")
	cancel()
	require.NoError(t, ctx.Err(), "it goes on for the one that waits")
	close(leave)
	wg.Wait()
	require.NoError(t, err)
	require.Equal(t, "a", reply)
	require.Equal(t, []string{"replayed"}, md["exactly-once-result"])
	require.Equal(t, 1, s.calls)
}

// A definite status is stored with its details; others leave the next attempt NEW.
func TestServerStoresDefiniteStatuses(t *testing.T) {
	definite := map[codes.Code]bool{
		codes.OK: true, codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true,
		codes.PermissionDenied: true, codes.FailedPrecondition: true, codes.OutOfRange: true, codes.Unimplemented: true,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		for _, custom := range []bool{false, true} {
			c := grpconce.ServerConfig{Scope: anyone}
			if custom {
				c.Stored = func(got codes.Code) bool { return got == code }
			}
			s := newCalled(t, server.Config{}, c)
			s.handler = func(_ context.Context, n int, in string) (any, error) {
				st, err := status.New(code, "call "+strings.Repeat("!", n)).WithDetails(durationpb.New(time.Second))
				if code == codes.OK {
					return wrapperspb.String(in), nil
				}
				require.NoError(t, err)
				return nil, st.Err()
			}
			_, _, first := s.call(t.Context(), "a", callID(1, 1))
			_, md, second := s.call(t.Context(), "a", callID(1, 2))
			if definite[code] || custom {
				require.Equal(t, 1, s.calls, "%v", code)
				require.True(t, proto.Equal(status.Convert(first).Proto(), status.Convert(second).Proto()))
				require.Equal(t, []string{"replayed"}, md["exactly-once-result"])
			} else {
				require.Equal(t, 2, s.calls, "%v", code)
				require.Equal(t, code, status.Code(second))
			}
		}
	}
	s := newCalled(t, server.Config{}, grpconce.ServerConfig{Scope: anyone, Stored: func(codes.Code) bool { return false }})
	for n := range 2 {
		reply, _, err := s.call(t.Context(), "a", callID(1, n+1))
		require.NoError(t, err)
		require.Equal(t, "a"+strings.Repeat("!", n+1), reply)
	}
	plain := errors.New("no status")
	s.handler = func(context.Context, int, string) (any, error) { return nil, plain }
	_, _, err := s.call(t.Context(), "a", callID(2, 1))
	require.Equal(t, plain, err, "as it was")
}

// Ids are scoped by the principal, and authorisation comes before tracking.
func TestServerScopes(t *testing.T) {
	denied := status.Error(codes.Unauthenticated, "who are you?")
	var user string
	s := newCalled(t, server.Config{}, grpconce.ServerConfig{Scope: func(context.Context) (string, error) {
		if user == "" {
			return "", denied
		}
		return user, nil
	}})
	_, _, err := s.call(t.Context(), "a", callID(1, 1))
	require.Equal(t, denied, err)
	require.Zero(t, s.results.Stats().Clients)
	for n, u := range []string{"alice", "mallory"} {
		user = u
		reply, _, err := s.call(t.Context(), "a", callID(1, 1))
		require.NoError(t, err)
		require.Equal(t, "a"+strings.Repeat("!", n+1), reply)
	}
}

// Handlers that panic or leave their call in doubt, and messages that cannot be stored.
func TestServerHandlersThatFail(t *testing.T) {
	var log bytes.Buffer
	s := newCalled(t, server.Config{}, grpconce.ServerConfig{Scope: anyone, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	handler := s.handler
	s.handler = func(context.Context, int, string) (any, error) { panic("boom") }
	require.PanicsWithValue(t, "boom", func() { _, _, _ = s.call(t.Context(), "a", callID(1, 1)) })
	s.handler = handler
	reply, _, err := s.call(t.Context(), "a", callID(1, 2))
	require.NoError(t, err)
	require.Equal(t, "a!!", reply)

	s.handler = func(context.Context, int, string) (any, error) { return nil, exactlyonce.ErrStale }
	for n := range 2 {
		_, md, err := s.call(t.Context(), "a", callID(2, n+1))
		requireRefused(t, md, err, codes.FailedPrecondition, "stale")
	}
	s.handler = func(context.Context, int, string) (any, error) { return "no message", nil }
	for n := range 2 {
		_, md, err := s.call(t.Context(), "a", callID(3, n+1))
		requireRefused(t, md, err, codes.FailedPrecondition, "stale")
	}
	require.Contains(t, log.String(), "a string is not a protocol buffer and cannot be stored")

	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("exactly-once", callID(4, 1)))
	_, err = s.interceptor(ctx, "no message", &grpc.UnaryServerInfo{}, nil)
	require.Equal(t, codes.Internal, status.Code(err))

	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.handler = func(context.Context, int, string) (any, error) { close(entered); <-leave; panic("boom") }
	go func() {
		defer close(left)
		defer func() { _ = recover() }()
		_, _, _ = s.call(t.Context(), "a", callID(5, 1))
	}()
	<-entered
	var md metadata.MD
	var wg sync.WaitGroup
	wg.Go(func() { _, md, err = s.call(t.Context(), "a", callID(5, 2)) })
	require.Eventually(t, func() bool { return s.results.Stats().Waiting == 1 }, time.Minute, time.Millisecond)
	close(leave)
	wg.Wait()
	<-left
	requireRefused(t, md, err, codes.Unavailable, "", "1000")
}

// oneRecord are Records of one answer.
type oneRecord struct {
	exactlyonce.Records
	answer []byte
	err    error
}

func (r *oneRecord) Find(context.Context, exactlyonce.Request) ([]byte, bool, error) {
	if r.answer == nil {
		return nil, false, r.err
	}
	return r.answer, true, r.err
}

func (r *oneRecord) Acknowledge(context.Context, []exactlyonce.Request) error { return nil }

func (r *oneRecord) Collect(context.Context, time.Time, time.Time) (int, int, error) {
	return 0, 0, nil
}

// X2: a reply that the handler has stored is found after a lost COMMIT and after a
// restart.
func TestServerWithRecords(t *testing.T) {
	records := &oneRecord{}
	var log bytes.Buffer
	config := grpconce.ServerConfig{Scope: anyone, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := newCalled(t, server.Config{Records: records}, config)
	s.handler = func(_ context.Context, _ int, in string) (any, error) {
		var err error
		records.answer, err = grpconce.Encode(wrapperspb.String(in+" stored"), nil)
		require.NoError(t, err)
		return nil, status.Error(codes.Unavailable, "the answer to COMMIT is lost")
	}
	for _, s := range []*called{s, newCalled(t, server.Config{Records: records}, config)} {
		reply, md, err := s.call(t.Context(), "a", callID(1, 1))
		require.NoError(t, err)
		require.Equal(t, "a stored", reply)
		require.Equal(t, []string{"replayed"}, md["exactly-once-result"])
	}
	for _, damaged := range []string{"", "\x03", "\x01\xff", "\x02\xff", "\x02", "\x01\x0a\x03a/b"} {
		records.answer = []byte(damaged)
		_, _, err := newCalled(t, server.Config{Records: records}, config).call(t.Context(), "a", callID(1, 1))
		require.Equal(t, codes.Internal, status.Code(err))
		require.Contains(t, log.String(), "grpconce: stored")
		log.Reset()
	}
	records.err = io.ErrUnexpectedEOF
	_, md, err := newCalled(t, server.Config{Records: records}, config).call(t.Context(), "a", callID(1, 1))
	requireRefused(t, md, err, codes.Unavailable, "", "1000")
	require.Contains(t, log.String(), "unexpected EOF")
}

func TestServerConfigThatMakesNoSense(t *testing.T) {
	require.PanicsWithValue(t, "grpconce: UnaryServerInterceptor: Scope is nil: it says whose call it is, and whose replies it may get",
		func() {
			grpconce.UnaryServerInterceptor(server.NewResults(server.Config{}), grpconce.ServerConfig{})
		})
	require.Panics(t, func() { grpconce.UnaryServerInterceptor(nil, grpconce.ServerConfig{Scope: anyone}) })
	r := server.NewResults(server.Config{})
	require.Panics(t, func() { grpconce.UnaryServerInterceptor(r, grpconce.ServerConfig{Scope: anyone, RetryAfter: -1}) })
}

// Whatever the metadata is: the call is refused as invalid, or runs once for two
// attempts.
func FuzzServerMetadata(f *testing.F) {
	f.Add(callID(1, 1))
	f.Add(`"0af7651916cd43dd8448eb211c80319c"; seq=7; attempt=1;first=3;step="a"`)
	f.Fuzz(func(t *testing.T, value string) {
		s := newCalled(t, server.Config{}, grpconce.ServerConfig{Scope: anyone})
		_, parseErr := parseID(value)
		for range 2 {
			reply, md, err := s.call(t.Context(), "a", value)
			if parseErr != nil {
				requireRefused(t, md, err, codes.InvalidArgument, "invalid")
				require.Zero(t, s.calls)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, "a!", reply)
		}
	})
}

// X1: client and server over a connection. The first attempt is broken off while its
// handler runs; the second gets what that one did.
func TestClientAndServer(t *testing.T) {
	results := server.NewResults(server.Config{})
	defer results.Close(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(grpconce.UnaryServerInterceptor(results, grpconce.ServerConfig{Scope: anyone})))
	entered, leave := make(chan struct{}), make(chan struct{})
	effects := 0
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "pay.v1.Payments", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Charge",
		Handler: func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := &wrapperspb.StringValue{}
			if err := decode(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/pay.v1.Payments/Charge"},
				func(context.Context, any) (any, error) {
					close(entered) // panics the second time
					<-leave
					effects++
					return wrapperspb.String("charged"), nil
				})
		},
	}}}, nil)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }() // until it is stopped
	defer func() { server.Stop(); <-served }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		append(grpconce.DialOptions("/pay.v1.Payments/"), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer conn.Close()

	tracker := caller.NewTracker(caller.Config{})
	element := tracker.Accepted(t.Context(), nil, false)
	charge := func(ctx context.Context, attempt int) (string, metadata.MD, error) {
		var trailer metadata.MD
		reply := &wrapperspb.StringValue{}
		err := conn.Invoke(tracker.AttemptStarted(ctx, attempt), "/pay.v1.Payments/Charge", wrapperspb.String("in"), reply, grpc.Trailer(&trailer))
		return reply.Value, trailer, err
	}
	ctx, cancel := context.WithCancel(element)
	first := make(chan error, 1)
	go func() {
		_, _, err := charge(ctx, 1)
		first <- err
	}()
	<-entered
	var wg sync.WaitGroup
	wg.Go(func() {
		reply, trailer, err := charge(element, 2)
		if err != nil || reply != "charged" || !slices.Equal(trailer.Get("exactly-once-result"), []string{"replayed"}) {
			t.Error(reply, trailer, err)
		}
	})
	require.Eventually(t, func() bool { return results.Stats().Waiting == 1 }, time.Minute, time.Millisecond)
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-first))
	close(leave)
	wg.Wait()
	reply, _, err := charge(element, 3)
	require.NoError(t, err)
	require.Equal(t, "charged", reply)
	require.Equal(t, 1, effects)
}
