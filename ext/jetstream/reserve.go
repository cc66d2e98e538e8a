package jetstream

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// A full replicated stream refuses even the replacement of a message. So a part of its
// limit is reserved for changes of messages (law D5): as much as a few calls of Take
// lease, or a hundredth if that is more; at most half.
const (
	reservedMsgs  = 4 * maxBatch
	reservedBytes = 4 * storearg.MaxBytes
)

// errReserved is returned if there is room only for changes.
var errReserved = fmt.Errorf("%w: the rest of the limit is for the messages that are there", store.ErrFull)

// admitted counts first states that are being published.
type admitted struct{ msgs, bytes atomic.Int64 }

// admit returns errReserved if the first states among messages have no room. The caller
// calls leave when they are published. Other processes that publish meanwhile may take
// some of the reserve.
func (s *Engine) admit(ctx context.Context, ms []*nats.Msg) (leave func(), err error) {
	leave = func() {}
	limits := s.stream.CachedInfo().Config
	if limits.Replicas <= 1 || limits.MaxMsgs <= 0 && limits.MaxBytes <= 0 {
		return leave, nil
	}
	var count, size int64
	for _, m := range ms {
		if m.Header.Get(headerState) != "" && strings.Trim(m.Header.Get(jetstream.ExpectedLastSubjSeqHeader), "0") == "" {
			count++
			size += int64(m.Size())
		}
	}
	if count == 0 {
		return leave, nil
	}
	msgs, bytes := s.admitted.msgs.Add(count), s.admitted.bytes.Add(size)
	leave = func() {
		s.admitted.msgs.Add(-count)
		s.admitted.bytes.Add(-size)
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		err = s.published(ctx, err)
	} else if limits = info.Config; crowded(limits.MaxMsgs, reservedMsgs, info.State.Msgs, msgs) || crowded(limits.MaxBytes, reservedBytes, info.State.Bytes, bytes) {
		err = fmt.Errorf("jetstream: stream %s: %w", s.name, errReserved)
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// crowded reports whether more would use the reserve of a limit. A limit that is not
// positive has no reserve.
func crowded(limit, reserved int64, has uint64, more int64) bool {
	return limit > 0 && has+uint64(more) > uint64(limit-min(max(reserved, limit/100), limit/2))
}
