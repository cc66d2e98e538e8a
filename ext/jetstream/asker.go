package jetstream

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// asker sends many requests, and then waits for all the answers. They share a subscription: [nats.Conn.Request] takes a goroutine, a
// timer and a channel for each. The zero asker is ready; it is used by one goroutine at a time.
type asker struct {
	answers *nats.Subscription // of inbox and a number; nil: there is none
	inbox   string
	last    uint64 // number of the last request
}

// request is a request of an asker.
type request struct {
	subject string
	data    []byte
	sent    bool
	waits   bool  // for its answer
	err     error // why there was none
}

// send sends requests, or none while the connection is broken: what it keeps until it has another one comes too late, perhaps.
func (a *asker) send(nc *nats.Conn, rs []request) {
	err := a.begin(nc)
	for i := range rs {
		a.last++
		if rs[i].err = err; err == nil {
			rs[i].err = nc.PublishRequest(rs[i].subject, a.inbox+strconv.FormatUint(a.last, 36), rs[i].data)
		}
		rs[i].sent = rs[i].err == nil
		rs[i].waits = rs[i].sent
	}
}

// wait waits until the requests that were sent last are answered, or until ctx ends.
func (a *asker) wait(ctx context.Context, rs []request) {
	left := 0
	for i := range rs {
		if rs[i].waits {
			left++
		}
	}
	first := a.last - uint64(len(rs)) + 1
	var why error
	for left > 0 {
		m, err := a.answers.NextMsgWithContext(ctx)
		if err == nil {
			n, _ := strconv.ParseUint(strings.TrimPrefix(m.Subject, a.inbox), 36, 64)
			if n >= first && n <= a.last && rs[n-first].waits { // else it is the answer to an earlier one
				rs[n-first].waits = false
				left--
			}
			continue
		}
		why = err
		if errors.Is(err, nats.ErrNoResponders) { // it does not say which one
			left--
			continue
		}
		if ctx.Err() != nil {
			why = context.Cause(ctx)
		} else {
			a.end() // the next ones need another subscription
		}
		break
	}
	for i := range rs {
		if rs[i].waits {
			rs[i].waits, rs[i].err = false, why
		}
	}
}

// begin subscribes to answers.
func (a *asker) begin(nc *nats.Conn) (err error) {
	if !nc.IsConnected() {
		return nats.ErrDisconnected
	}
	if a.answers == nil {
		a.inbox = nc.NewInbox() + "."
		a.answers, err = nc.SubscribeSync(a.inbox + "*")
	}
	return err
}

// end ends the subscription; the next request begins another one.
func (a *asker) end() {
	if a.answers != nil {
		_ = a.answers.Unsubscribe() // the connection may be closed
	}
	a.answers = nil
}
