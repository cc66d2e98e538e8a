package hbase

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"github.com/tsuna/gohbase/pb"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
)

// Mutate returns a function that writes a row: a put, a delete, an increment or an
// append. request makes the request for an element, with the given context. An attempt
// sends it at most once. If the request has another context, the attempt also ends with
// that. result makes the result of the response, whose cells are the new values of an
// increment or append; other writes have none.
//
// timeout limits an attempt; 0 means no limit. Use it in place of
// asyncop.WithAttemptTimeout: an attempt that ends here reports whether its request was
// sent, and an attempt that the operator cuts off cannot. So a write that waited in vain
// for its region may be repeated, even if it must not happen twice. Choose a timeout
// below the element's timeout, which also cuts an attempt off.
//
// An attempt does not end while gohbase writes its request to the connection, since the
// server would get a part of it. If the server does not read, Mutate closes the
// connection 5 s after the attempt should have ended. So timeout should be long enough to
// transmit a request.
//
// Mutate panics if an argument is nil, if timeout is negative, or if client was not made
// by gohbase.NewClient.
func Mutate[IN, OUT any](
	client gohbase.Client,
	timeout time.Duration,
	request func(ctx context.Context, in IN) (*hrpc.Mutate, error),
	result func(in IN, r *hrpc.Result) (OUT, error),
) asyncop.AsyncFunction[IN, OUT] {
	requireArguments("Mutate", client == nil, request == nil, result == nil)
	if timeout < 0 {
		panic(fmt.Sprintf("hbase: Mutate: timeout %v is negative: use 0 for no limit", timeout))
	}
	sender, ok := client.(gohbase.RPCClient)
	if !ok {
		panic(fmt.Sprintf("hbase: Mutate: %T has no method SendRPC: use a client of gohbase.NewClient", client))
	}
	return asyncop.Blocking(func(ctx context.Context, in IN) (OUT, error) {
		var none OUT
		ctx, cancel := limited(ctx, timeout)
		defer cancel()
		mutation, err := request(ctx, in)
		if err != nil {
			return none, unsent(err)
		}
		response, err := sendOnce(ctx, sender, mutation)
		if err != nil {
			return none, err
		}
		return result(in, response)
	})
}

func limited(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// sendOnce sends mutation at most once. Its error shows whether the request was sent, and
// whether it was refused.
func sendOnce(ctx context.Context, sender gohbase.RPCClient, mutation *hrpc.Mutate) (*hrpc.Result, error) {
	w := newWrite(ctx, mutation)
	defer w.finish()
	message, err := sender.SendRPC(w)
	answer, ok := w.answer()
	switch {
	case ok: // SendRPC may have returned its context's end
		message, err = answer.Msg, answer.Error
	case err != nil: // the request may have another context
		err = cmp.Or(ctx.Err(), err)
	}
	request, isSent := w.request()
	switch {
	case err != nil && !isSent:
		return nil, unsent(err)
	case err != nil:
		err = &onlyRequestError{err}
		if find(err).isRefusal() {
			request.Refused()
		}
		return nil, err
	}
	response, ok := message.(*pb.MutateResponse)
	if !ok {
		return nil, fmt.Errorf("hbase: the response to %s is a %T, not a MutateResponse", mutation.Name(), message)
	}
	return hrpc.ToLocalResult(response.Result), nil
}

// unsent marks err: the request was not sent.
func unsent(err error) error {
	return &predicates.StageError{Stage: predicates.ClientDispatch, Err: &onlyRequestError{err}}
}

// onlyRequestError is an error of a call that sent at most one request, so it applies to
// the whole call.
type onlyRequestError struct{ err error }

func (e *onlyRequestError) Error() string { return e.err.Error() }
func (e *onlyRequestError) Unwrap() error { return e.err }
