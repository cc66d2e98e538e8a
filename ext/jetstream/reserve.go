package jetstream

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// A replicated stream that is full refuses even a publication that takes the place of a message. So a part of its limit is for changes of what is
// there (law D5): as much as a few calls of Take lease, or a hundredth if that is more; at most half.
const (
	reservedMsgs  = maxBatch
	reservedBytes = storearg.MaxBytes
)

// errReserved says that only changes have room.
var errReserved = fmt.Errorf("%w: the rest of the limit is for the messages that are there", store.ErrFull)

// admit returns errReserved if the first states among messages have no room.
func (s *Engine) admit(ctx context.Context, ms []*nats.Msg) error {
	limits := s.stream.CachedInfo().Config
	if limits.Replicas <= 1 || limits.MaxMsgs <= 0 && limits.MaxBytes <= 0 {
		return nil
	}
	var count, size uint64
	for _, m := range ms {
		if m.Header.Get(headerState) != "" && strings.Trim(m.Header.Get(jetstream.ExpectedLastSubjSeqHeader), "0") == "" {
			count++
			size += uint64(m.Size())
		}
	}
	if count == 0 {
		return nil
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return s.published(ctx, err)
	}
	limits = info.Config
	if crowded(limits.MaxMsgs, reservedMsgs, info.State.Msgs, count) || crowded(limits.MaxBytes, reservedBytes, info.State.Bytes, size) {
		return fmt.Errorf("jetstream: stream %s: %w", s.name, errReserved)
	}
	return nil
}

// crowded reports whether more would use the reserve of a limit. There is none if it is not positive.
func crowded(limit, reserved int64, has, more uint64) bool {
	return limit > 0 && has+more > uint64(limit-min(max(reserved, limit/100), limit/2))
}
