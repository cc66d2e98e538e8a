// Package pubs knows why a server refuses a message.
package pubs

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// MaxTries bounds how often a message is published again while it is under way: for about ten seconds.
	MaxTries = 500
	pause    = 20 * time.Millisecond

	errCodeInProcess = 10158 // the client has no name for it
)

// UnderWay says that the servers of a cluster are storing a message with the same id: it is there soon, or has to be published again.
func UnderWay(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == errCodeInProcess
}

// Moved says that a message was refused since the stream, or its subject, does not end with the message that it must come behind.
func Moved(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) // of a cluster that is storing another one
}

// Pause waits before it is published again.
func Pause(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	<-waiting.Done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
