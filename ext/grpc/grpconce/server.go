package grpconce

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/oncewire"
)

// ServerConfig configures [UnaryServerInterceptor]. Scope is required.
type ServerConfig struct {
	// Scope returns the authenticated principal of a call, so that no client gets another
	// client's replies. It only reads the results of earlier interceptors. Its error ends
	// the call untracked. A service with a single client returns a constant.
	Scope func(ctx context.Context) (scope string, err error)

	// Required reports whether a call of a method without an id is refused. By default
	// such calls are handled without tracking.
	Required func(method string) bool

	// Stored reports whether a status is definite: it is stored and returned again, while
	// after others the next attempt is NEW. Default: OK, INVALID_ARGUMENT, NOT_FOUND,
	// ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE and
	// UNIMPLEMENTED.
	Stored func(code codes.Code) bool

	// RetryAfter is how long clients are asked to wait before they repeat a call.
	// Default 1 s.
	RetryAfter time.Duration

	// Logger logs failures that clients do not see: errors of Records, and unreadable
	// stored replies. Default: slog.Default().
	Logger *slog.Logger
}

// UnaryServerInterceptor returns an interceptor for [grpc.ChainUnaryInterceptor] that
// tracks unary calls with ids. A call with an id runs at most once at a time, and not
// again once it has a definite status; other calls, and streams, pass through. Put it
// after authentication and authorisation.
//
// Answers of the tracker have its result in the trailer exactly-once-result:
//
//	replayed     any status            the reply to another attempt
//	in-progress  UNAVAILABLE           an earlier attempt runs, and too many wait
//	mismatch     FAILED_PRECONDITION   another method or message had this id
//	stale        FAILED_PRECONDITION   the request stays in doubt
//	invalid      INVALID_ARGUMENT      the id is missing, comes twice or is not valid
//	full         UNAVAILABLE           not executed: a bound of server.Config
//
// UNAVAILABLE without it means that the attempt ended without a reply, or that Records
// cannot be read. If the call may be repeated, the trailer grpc-retry-pushback-ms has the
// delay.
//
// The reply's message is stored, or the status with its details; header and trailer are
// not. The context of a handler is the context of [server.Results.Do]: it outlives its
// caller while others wait, and has no deadline. A handler that uses an
// [exactlyonce.Store] stores the result of [Encode] in the transaction of its effect; if
// Put or COMMIT fails, it rolls back and returns an error that is not definite.
//
// Messages must be protocol buffers whose types are linked in; a tracked call with other
// messages fails with INTERNAL. UnaryServerInterceptor panics if results or Scope is nil
// or RetryAfter is negative.
func UnaryServerInterceptor(results *server.Results, c ServerConfig) grpc.UnaryServerInterceptor {
	if results == nil {
		panic("grpconce: UnaryServerInterceptor: nil results")
	}
	if c.Scope == nil {
		panic("grpconce: UnaryServerInterceptor: Scope is nil: it says whose call it is, and whose replies it may get")
	}
	if c.Required == nil {
		c.Required = func(string) bool { return false }
	}
	if c.Stored == nil {
		c.Stored = isDefinite
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = time.Second
	}
	if c.RetryAfter < 0 {
		panic(fmt.Sprintf("grpconce: UnaryServerInterceptor: RetryAfter is %v", c.RetryAfter))
	}
	c.Logger = guard.Logger(c.Logger)
	return (&tracking{results, c}).unary
}

func isDefinite(code codes.Code) bool {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented:
		return true
	default:
		return false
	}
}

type tracking struct {
	results *server.Results
	config  ServerConfig
}

func (s *tracking) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	values := metadata.ValueFromIncomingContext(ctx, idKey)
	if len(values) == 0 && !s.config.Required(info.FullMethod) {
		return next(ctx, req)
	}
	if len(values) != 1 {
		s.countInvalid(ctx)
		return nil, s.refuse(ctx, fmt.Errorf("%w: metadata %s has %d values instead of one", exactlyonce.ErrInvalid, idKey, len(values)))
	}
	var id exactlyonce.ID
	if err := id.UnmarshalText([]byte(values[0])); err != nil {
		s.countInvalid(ctx)
		return nil, s.refuse(ctx, err)
	}
	scope, err := s.config.Scope(ctx)
	if err != nil {
		return nil, err
	}
	print, err := fingerprint(info.FullMethod, req)
	if err != nil {
		return nil, err
	}
	var reply any
	request := exactlyonce.Request{ID: id, Scope: scope, Fingerprint: print}
	stored, replayed, err := s.results.Do(ctx, request,
		func(ctx context.Context) ([]byte, error) {
			var err error
			reply, err = next(ctx, req)
			if !s.config.Stored(status.Code(err)) {
				return nil, &transientError{reply, err}
			}
			stored, err := Encode(reply, err)
			if err != nil { // the effect has happened, but its reply cannot be repeated
				s.config.Logger.Error("a reply cannot be stored", "method", info.FullMethod, "error", err)
				return nil, fmt.Errorf("%w: %w", exactlyonce.ErrStale, err)
			}
			return stored, nil
		})
	if t, ok := errors.AsType[*transientError](err); ok && !errors.Is(err, exactlyonce.ErrStale) {
		return t.reply, t.err
	}
	if err != nil {
		return nil, s.refuse(ctx, err)
	}
	if replayed {
		s.trailer(ctx, oncewire.Replayed, false)
	}
	if isRefusal(stored) && s.results.KeepsRefusal(ctx, request, isRefusal) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(keptKey, "true")) // fails if the call has ended
	}
	return s.decode(stored, reply, replayed)
}

func isRefusal(stored []byte) bool {
	_, refusal, err := decode(stored)
	return err == nil && refusal != nil
}

// countInvalid makes Results refuse, and count, a request without an id.
func (s *tracking) countInvalid(ctx context.Context) {
	_, _ = s.results.Track(ctx, exactlyonce.Request{})
}

// transientError is a handler's result that is not stored. Waiting attempts get it, too.
type transientError struct {
	reply any
	err   error
}

func (*transientError) Error() string   { return "grpconce: the reply is not definite" }
func (e *transientError) Unwrap() error { return e.err }

func (s *tracking) decode(stored []byte, reply any, replayed bool) (any, error) {
	message, isError, err := decode(stored)
	switch {
	case err != nil:
		s.config.Logger.Error("a stored reply cannot be sent", "error", err)
		return nil, status.Error(codes.Internal, "the stored reply cannot be read")
	case isError != nil:
		return nil, isError
	case !replayed:
		return reply, nil
	}
	return message, nil
}

func (s *tracking) refuse(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, exactlyonce.ErrStale):
		s.trailer(ctx, oncewire.Stale, false)
		return status.Error(codes.FailedPrecondition, "whether the call took effect is unknown; do not repeat it")
	case errors.Is(err, exactlyonce.ErrInvalid):
		s.trailer(ctx, oncewire.Invalid, false)
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, exactlyonce.ErrMismatch):
		s.trailer(ctx, oncewire.Mismatch, false)
		return status.Error(codes.FailedPrecondition, "another call had this id")
	case errors.Is(err, exactlyonce.ErrInProgress):
		s.trailer(ctx, oncewire.InProgress, true)
		return status.Error(codes.Unavailable, "an earlier attempt of the call runs; repeat it later")
	case errors.Is(err, exactlyonce.ErrFull):
		s.trailer(ctx, oncewire.Full, true)
		return status.Error(codes.Unavailable, "too many calls are tracked; repeat it later")
	case errors.Is(err, server.ErrNoAnswer):
		s.trailer(ctx, "", true)
		return status.Error(codes.Unavailable, "the attempt that ran ended without a reply")
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	s.config.Logger.Error("a tracked call was not handled", "error", err)
	s.trailer(ctx, "", true)
	return status.Error(codes.Unavailable, "the records of earlier attempts cannot be read; repeat it later")
}

func (s *tracking) trailer(ctx context.Context, result string, pushback bool) {
	md := metadata.MD{}
	if result != "" {
		md.Set(resultKey, result)
	}
	if pushback {
		md.Set("grpc-retry-pushback-ms", strconv.FormatInt(max(1, s.config.RetryAfter.Milliseconds()), 10))
	}
	_ = grpc.SetTrailer(ctx, md) // fails if the call has ended
}

func fingerprint(method string, req any) ([32]byte, error) {
	message, ok := req.(proto.Message)
	if !ok {
		return [32]byte{}, status.Errorf(codes.Internal, "a %T is not a protocol buffer and cannot be tracked", req)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return [32]byte{}, status.Errorf(codes.Internal, "hash a tracked call: %v", err)
	}
	h := sha256.New()
	_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(method)))) // never fails
	_, _ = io.WriteString(h, method)
	_, _ = h.Write(b)
	return [32]byte(h.Sum(nil)), nil
}

// The first byte of a stored reply.
const (
	storedReply  = 1 // an Any follows
	storedStatus = 2 // a Status follows
)

// Encode returns a reply, or a handler's error, as it is stored: for an
// [exactlyonce.Store].
func Encode(reply any, err error) ([]byte, error) {
	if err != nil {
		b, err := proto.Marshal(status.Convert(err).Proto())
		return append([]byte{storedStatus}, b...), err
	}
	message, ok := reply.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "a %T is not a protocol buffer and cannot be stored", reply)
	}
	packed, err := anypb.New(message)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "store a reply: %v", err)
	}
	b, err := proto.Marshal(packed)
	return append([]byte{storedReply}, b...), err
}

func decode(stored []byte) (reply proto.Message, isError, err error) {
	if len(stored) == 0 {
		return nil, nil, errors.New("grpconce: stored reply: it is empty")
	}
	switch stored[0] {
	case storedReply:
		packed := &anypb.Any{}
		if err := proto.Unmarshal(stored[1:], packed); err != nil {
			return nil, nil, fmt.Errorf("grpconce: stored reply: %w", err)
		}
		reply, err := packed.UnmarshalNew()
		if err != nil {
			return nil, nil, fmt.Errorf("grpconce: stored reply: %w", err)
		}
		return reply, nil, nil
	case storedStatus:
		s := status.New(codes.Unknown, "").Proto()
		if err := proto.Unmarshal(stored[1:], s); err != nil {
			return nil, nil, fmt.Errorf("grpconce: stored status: %w", err)
		}
		if isError := status.FromProto(s).Err(); isError != nil {
			return nil, isError, nil
		}
		return nil, nil, errors.New("grpconce: stored status: it is OK")
	}
	return nil, nil, fmt.Errorf("grpconce: stored reply: version %d is unknown", stored[0])
}
