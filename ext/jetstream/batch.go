package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Headers of a transaction that the client does not name.
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// batchRoom is more bytes than these headers add to a message.
const batchRoom = 128

// batch publishes messages in one transaction, and returns the last one's sequence
// number.
func (s *Engine) batch(ctx context.Context, ms []*nats.Msg) (uint64, error) {
	nc := s.js.Conn()
	id := nuid.Next()
	for i, m := range ms {
		m.Header.Set(headerBatchID, id)
		m.Header.Set(headerBatchSequence, strconv.Itoa(i+1))
		if i == len(ms)-1 {
			m.Header.Set(headerBatchCommit, "1")
			break
		}
		if err := nc.PublishMsg(m); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.js.Options().DefaultTimeout)
	defer cancel()
	answer, err := nc.RequestMsgWithContext(ctx, ms[len(ms)-1])
	if err != nil {
		return 0, err
	}
	var ack struct {
		Error    *jetstream.APIError `json:"error"`
		Sequence uint64              `json:"seq"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("the answer to a transaction: %w", err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	return ack.Sequence, nil
}
