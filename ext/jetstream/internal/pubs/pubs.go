// Package pubs publishes messages that are confirmed later, and knows why a server
// refuses one.
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
	// MaxTries bounds how often a message is published again while it is under way: for
	// about ten seconds.
	MaxTries = 500
	pause    = 20 * time.Millisecond

	errCodeInProcess = 10158 // the client has no name for it
)

// NoDeadline returns a context that ends with ctx but has no deadline. With a deadline
// the client waits until then for each answer, which may be lost with a connection;
// otherwise it waits for its own timeout (jetstream.WithDefaultTimeout, 5 s by default).
func NoDeadline(ctx context.Context) context.Context { return noDeadline{ctx} }

type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// UnderWay reports whether the servers of a cluster are storing a message with the same
// id: it is there soon, or has to be published again.
func UnderWay(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errCodeInProcess
}

// Moved reports whether a message was refused because the stream, or its subject, does
// not end with the message that it must follow.
func Moved(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) // of a cluster that is storing another one
}

// The server's numbers of errors that the client has no names for.
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
// stored, for example because it is too large, and [store.ErrFull] if there is no room
// for it.
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

// Own returns a JetStream like js, on the same connection, but with its own publications,
// which are forgotten after timeout. Publications that a server never answers, for
// example because it was killed, would otherwise fill the window of js for good. If js
// wraps the client's, Own returns js.
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

// Confirmed waits for the confirmation of a message, for at most timeout. If stop is set,
// it does not wait. After a timeout, nowOver is set: messages that were published as long
// ago need no longer wait.
func Confirmed(ctx context.Context, f jetstream.PubAckFuture, timeout time.Duration, stop error) (ack *jetstream.PubAck, err, nowOver error) {
	ok := f.Ok()
	select {
	case ack := <-ok: // as for most messages behind the first
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
