package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// puller asks a consumer for messages. The client's requests either wait for as many messages as were asked for, or are not bounded in bytes.
type puller struct {
	nc      *nats.Conn
	subject string
	most    jetstream.ConsumerConfig // bounds of a request
}

// pull is a request for messages.
type pull struct {
	Batch    int           `json:"batch"`
	MaxBytes int           `json:"max_bytes,omitempty"` // with their subjects and headers; 0: unbounded
	NoWait   bool          `json:"no_wait,omitempty"`   // for those that are there
	Expires  time.Duration `json:"expires,omitempty"`
}

// unanswered is how long the server may take for the next message, or to say that there is none: one whose consumer has MaxAckPending messages
// that are not acknowledged says nothing.
const unanswered = 5 * time.Second

func newPuller(js jetstream.JetStream, stream, consumer string, cfg jetstream.ConsumerConfig) puller {
	o := js.Options()
	api := jetstream.DefaultAPIPrefix
	switch {
	case o.Domain != "":
		api = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		api = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return puller{js.Conn(), api + "CONSUMER.MSG.NEXT." + stream + "." + consumer, cfg}
}

// pull calls got with the messages that are delivered for a request. It returns [jetstream.ErrMaxBytesExceeded] if the next one has too many bytes.
func (p puller) pull(ctx context.Context, r pull, got func(*nats.Msg)) error {
	r.Batch = min(r.Batch, cmp.Or(p.most.MaxRequestBatch, r.Batch))
	r.MaxBytes = min(r.MaxBytes, cmp.Or(p.most.MaxRequestMaxBytes, r.MaxBytes))
	r.Expires = min(r.Expires, cmp.Or(p.most.MaxRequestExpires, r.Expires))
	ask, err := json.Marshal(r)
	if err != nil {
		return err
	}
	answers := make(chan *nats.Msg, r.Batch+10) // and what the server says of the request
	inbox := p.nc.NewInbox()
	sub, err := p.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return err
	}
	defer func() {
		_ = sub.Unsubscribe() // the connection may be closed
		for len(answers) > 0 {
			if m := <-answers; m.Reply != "" {
				got(m)
			}
		}
	}()
	if err := p.nc.PublishRequest(p.subject, inbox, ask); err != nil {
		return err
	}
	late := time.NewTimer(r.Expires + unanswered) //nolint:forbidigo // it is the server's time, as that of a context
	defer late.Stop()
	for n, size, why := 0, 0, error(nil); ; {
		select {
		case m := <-answers:
			if m.Reply != "" {
				n, size = n+1, size+m.Size()
				got(m)
				late.Reset(r.Expires + unanswered)
			} else if over, left, err := status(m); over {
				return err
			} else if err != nil || left > 0 { // it overtakes messages that a cluster is still noting
				r.Batch, why = r.Batch-left, err
			}
			if n >= r.Batch || r.MaxBytes > 0 && size >= r.MaxBytes {
				return why
			}
		case <-late.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// status returns what the server says of a request: that it is over, or how many messages of it do not come, and why.
func status(m *nats.Msg) (over bool, left int, err error) {
	code, text := m.Header.Get("Status"), m.Header.Get("Description")
	left, _ = strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	lower := strings.ToLower(text)
	switch {
	case code == "100" || strings.Contains(lower, "batch completed"):
		return false, 0, nil
	case code == "404" || code == "408": // there is none, or none has come
		return true, 0, nil
	case code == "503":
		return true, 0, nats.ErrNoResponders
	case strings.Contains(lower, "message size exceeds maxbytes"):
		return false, left, jetstream.ErrMaxBytesExceeded
	case strings.Contains(lower, "consumer deleted"):
		return true, 0, jetstream.ErrConsumerDeleted
	}
	return true, 0, errors.New(cmp.Or(text, fmt.Sprintf("status %q", code)))
}
