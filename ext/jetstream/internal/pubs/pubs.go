// Package pubs publishes messages that are confirmed later, and classifies refusals.
package pubs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

const (
	// MaxTries bounds how often a message that is under way is published again: for about
	// ten seconds.
	MaxTries = 500
	pause    = 20 * time.Millisecond

	errCodeInProcess = 10158
)

// NoDeadline returns a context that ends with ctx but has no deadline. Then the client
// waits for each answer, which may be lost with a connection, only for its own timeout
// (jetstream.WithDefaultTimeout, 5 s by default), not until the deadline.
func NoDeadline(ctx context.Context) context.Context { return noDeadline{ctx} }

type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// UnderWay reports whether a cluster is storing a message with the same id: it is there
// soon, or has to be published again.
func UnderWay(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errCodeInProcess
}

// Moved reports whether a message was refused because the stream, or its subject, does
// not end with the message that it must follow.
func Moved(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) // a cluster is storing another one
}

// Error numbers of the server that the client does not name.
const (
	errCodeMessageTooLarge = 10054
	errCodeHeadersTooLarge = 10097

	errCodeResources     = 10023
	errCodeMemoryFull    = 10028
	errCodeStorageFull   = 10047
	errCodeStoreFailed   = 10077
	errCodeAccountLimits = 10002
)

// Refused returns err so that it matches [message.ErrRefused] if a message can never be
// stored, such as one that is too large, and [store.ErrFull] if there is no room.
func Refused(err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		api = &jetstream.APIError{}
	}
	switch c := api.ErrorCode; {
	case errors.Is(err, nats.ErrMaxPayload), c == errCodeMessageTooLarge, c == errCodeHeadersTooLarge:
		return fmt.Errorf("%w: %w", message.ErrRefused, err)
	case c == errCodeResources, c == errCodeMemoryFull, c == errCodeStorageFull, c == errCodeAccountLimits,
		c == errCodeStoreFailed && (strings.Contains(api.Description, "maximum") || strings.Contains(api.Description, "no space")):
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return err
}

// Pause waits before the next try to publish.
func Pause(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	<-waiting.Done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Own returns a JetStream like js, on the same connection, whose publications are its own
// and are forgotten after timeout. Publications that are never answered, for example by a
// killed server, would otherwise fill the window of js for good. If js wraps the
// client's, Own returns js.
func Own(js jetstream.JetStream, timeout time.Duration) jetstream.JetStream {
	own, err := jetstream.New(js.Conn(), func(o *jetstream.JetStreamOptions) error {
		*o = js.Options()
		return jetstream.WithPublishAsyncTimeout(timeout)(o)
	})
	if err != nil || reflect.TypeOf(own) != reflect.TypeOf(js) {
		return js
	}
	return own
}

// Confirmed waits up to timeout for the confirmation of a message, or not at all if stop
// is set. After a timeout it returns nowOver: messages that were published as long ago
// need no wait.
func Confirmed(ctx context.Context, f jetstream.PubAckFuture, timeout time.Duration, stop error) (ack *jetstream.PubAck, err, nowOver error) {
	ok := f.Ok()
	select {
	case ack := <-ok: // the usual case behind the first
		return ack, nil, stop
	default:
	}
	if stop != nil {
		return nil, stop, stop
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case ack := <-ok:
		return ack, nil, nil
	case err := <-f.Err():
		return nil, err, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx), context.Cause(ctx)
	}
}
