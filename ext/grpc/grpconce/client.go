package grpconce

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/ext/grpc/grpcstage"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/grpcretry"
)

// The metadata of ids, and the trailer of the server tracker's answers.
var (
	idKey     = strings.ToLower(exactlyonce.Header)
	resultKey = strings.ToLower(oncewire.Result)
	keptKey   = strings.ToLower(oncewire.Kept)
)

// DialOptions returns the options for [grpc.NewClient] that send ids with unary calls of
// the named methods. A method is a full name as in gRPC, /pay.v1.Payments/Charge; a name
// that ends with a slash, /pay.v1.Payments/, means all methods of a service. Name only
// methods whose server recognises the ids, as with the interceptor of this package, since
// calls are repeated because of that.
//
// A call of a named method needs the context of an element's attempt under a
// [caller.Tracker]. Without it, or if an attempt makes a second request without a step
// ([caller.WithStep]), the call fails unsent with an error of [caller.NextID]. Other
// calls and streams are sent without an id.
//
// Answers of the server's tracker become errors. They match, under [errors.Is]:
//
//	ErrStale       the call stays in doubt, is not repeated, and without a status
//	ErrMismatch    refused for good: FAILED_PRECONDITION
//	ErrInvalid     refused for good: INVALID_ARGUMENT
//	ErrInProgress  may be repeated: UNAVAILABLE
//	ErrFull        not executed, may be repeated: UNAVAILABLE
//
// A call with an id is reported as deduplicated ([predicates.WithDeduplicated]), so that
// reason-aware strategies repeat it if it was lost in flight, unless the attempt has sent
// another request. For that, the options include those of package grpcstage. If the
// server's trailer marks a refusal as kept, earlier attempts of the call are not in
// doubt. Attempts of gRPC's own retry policy carry the same id and attempt number.
//
// The options go before other interceptors that make attempts. DialOptions panics if no
// method is named, or if a name has another form.
func DialOptions(methods ...string) []grpc.DialOption {
	if len(methods) == 0 {
		panic("grpconce: DialOptions: no method is named")
	}
	named := make(names, len(methods))
	for _, m := range methods {
		if service, method, ok := strings.Cut(strings.TrimPrefix(m, "/"), "/"); !ok || m[0] != '/' || service == "" || strings.Contains(method, "/") {
			panic(fmt.Sprintf("grpconce: DialOptions: %q is neither /service/method nor /service/", m))
		}
		named[m] = true
	}
	return append([]grpc.DialOption{
		grpc.WithChainUnaryInterceptor(named.unary),
		grpc.WithChainStreamInterceptor(stream),
	}, grpcstage.DialOptions()...)
}

// names are methods, or services with a slash at the end.
type names map[string]bool

func (n names) has(method string) bool {
	return n[method] || n[method[:strings.LastIndexByte(method, '/')+1]]
}

func (n names) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if !n.has(method) {
		return invoke(withoutID(ctx), method, req, reply, cc, opts...)
	}
	id, err := caller.NextID(ctx)
	if err != nil {
		return &predicates.StageError{Stage: predicates.ClientDispatch, Err: err}
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(idKey, id.String())
	var trailer metadata.MD
	numbered := predicates.WithDeduplicated(context.WithValue(ctx, ctxkey.Numbered{}, true))
	err = invoke(metadata.NewOutgoingContext(numbered, md), method, req, reply, cc,
		append(slices.Clip(opts), grpc.Trailer(&trailer))...)
	if err == nil {
		return nil
	}
	class := classOf(trailer)
	if class == nil {
		e, ok := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
		if ok && isKeptRefusal(err, trailer) {
			e.NoteRefused(id.Step)
		}
		return err
	}
	if class == exactlyonce.ErrStale { //nolint:errorlint // from classOf
		predicates.ReportSent(ctx) // law X1: no longer deduplicated, so it is not repeated
	}
	return &predicates.StageError{Stage: predicates.ResponseReceived, Err: &answerError{class: class, method: method, id: id, status: err}}
}

// isKeptRefusal reports whether the server keeps a reply as its answer to all attempts,
// and the reply refuses the call for good. A status without the trailer may come from an
// interceptor in front of the server's tracker, which does not know of earlier attempts.
func isKeptRefusal(err error, trailer metadata.MD) bool {
	values := trailer.Get(keptKey)
	if len(values) != 1 || values[0] != "true" {
		return false
	}
	reason, _ := classify(&predicates.Attempt[struct{}]{Err: err})
	return reason.IsRejection()
}

var classify = grpcretry.Classifier[struct{}](status.Code)

// stream passes a stream without an id: a stream is not one request.
func stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(withoutID(ctx), desc, cc, method, opts...)
}

// withoutID removes an id that a program which copies metadata has put into ctx.
func withoutID(ctx context.Context) context.Context {
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok || len(md[idKey]) == 0 {
		return ctx
	}
	md.Delete(idKey)
	return metadata.NewOutgoingContext(ctx, md)
}

// classOf returns the error for an answer of the server's tracker, or nil for an answer
// of the service.
func classOf(trailer metadata.MD) error {
	if values := trailer.Get(resultKey); len(values) == 1 {
		switch values[0] {
		case oncewire.Stale:
			return exactlyonce.ErrStale
		case oncewire.Mismatch:
			return exactlyonce.ErrMismatch
		case oncewire.InProgress:
			return exactlyonce.ErrInProgress
		case oncewire.Full:
			return exactlyonce.ErrFull
		case oncewire.Invalid:
			return exactlyonce.ErrInvalid
		}
	}
	return nil
}

type answerError struct {
	class  error
	method string
	id     exactlyonce.ID
	status error
}

func (e *answerError) Error() string {
	step := ""
	if e.id.Step != "" {
		step = ", step " + strconv.Quote(e.id.Step)
	}
	return fmt.Sprintf("%v: element %d%s: %s: %v", e.class, e.id.Sequence, step, e.method, e.status)
}

func (e *answerError) Is(target error) bool { return target == e.class }

// Unwrap returns the status, which tells classifiers whether to repeat the call. It
// returns nil for a stale request, since FAILED_PRECONDITION would count as a refusal
// without effect.
func (e *answerError) Unwrap() error {
	if e.class == exactlyonce.ErrStale { //nolint:errorlint // from classOf
		return nil
	}
	return e.status
}
