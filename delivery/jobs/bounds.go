package jobs

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// mostOrigins limits bounds.Puts, which is part of the job's record.
const mostOrigins = 100

// bounds distinguish a family's messages that were put before a job started from later
// messages. An earlier message is at most at Last in the queue where it was at the start.
// If it has moved since, the origin of its put ([message.Meta].Put) is at most at Puts.
type bounds struct {
	Last map[string]int64 `json:"last,omitempty"` // by queue: position of the last message
	// By the origin of puts without its position, such as "orders/": the highest position
	// of the messages that wait or are in flight.
	Puts map[string]int64 `json:"puts,omitempty"`
}

// readBounds returns the bounds and the number of a family's messages that match a filter
// now, without the dead letters, which do not move on. The dead letters are counted after
// it, since messages move there as well. It lists the queues in the order
// in which messages move, so a message that moves meanwhile is found in the next queue.
func readBounds(ctx context.Context, s store.Inspector, of family, f store.Filter) (b *bounds, total int, err error) {
	b = &bounds{Last: map[string]int64{}, Puts: map[string]int64{}}
	for _, queue := range of.ordered() {
		if queue == of.dead {
			continue
		}
		for after := int64(0); ; {
			entries, err := s.List(ctx, queue, f, store.Page{After: after, Max: page})
			if err != nil {
				return nil, 0, err
			}
			if len(entries) == 0 { // a page of large messages has fewer than page
				break
			}
			for i := range entries {
				after = entries[i].Position
				if !b.note(queue, &entries[i]) {
					return nil, 0, fmt.Errorf("jobs: the messages of key %q of queue %q come from more than %d sources, so it would not be known "+
						"whether a message that moves was put before: purge the queue, its layers and its dead letters one after another, "+
						"with a filter of the key", f.Key, of.waiting[0], mostOrigins)
				}
			}
			total += len(entries)
		}
	}
	return b, total, nil
}

// note notes a message of a queue. It returns false if there are too many origins.
func (b *bounds) note(queue string, e *store.Entry) bool {
	b.Last[queue] = max(b.Last[queue], e.Position)
	origin, position := originOf(queue, e)
	if position > 0 {
		b.Puts[origin] = max(b.Puts[origin], position)
	}
	return len(b.Puts) <= mostOrigins
}

// includes reports whether a message is known to have been put before the job started.
func (b *bounds) includes(queue string, e *store.Entry) bool {
	if b == nil {
		return false
	}
	if e.Position <= b.Last[queue] {
		return true
	}
	origin, position := originOf(queue, e)
	return position > 0 && position <= b.Puts[origin]
}

// originOf returns the origin of a message's put without its position, and the position,
// or 0 if positions cannot be compared.
func originOf(queue string, e *store.Entry) (origin string, position int64) {
	put := storearg.OriginOfPut(queue, &e.Meta, e.Position, "")
	slash := strings.LastIndexByte(put, '/')
	if slash < 0 { // it is hashed
		return "", 0
	}
	position, err := strconv.ParseInt(put[slash+1:], 10, 64)
	if err != nil {
		return "", 0
	}
	return put[:slash], position
}
