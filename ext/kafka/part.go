package kafka

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/ext/kafka/internal/offsets"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/timers"
)

const forever time.Duration = math.MaxInt64

type partitionID struct {
	topic     string
	partition int32
}

func (id partitionID) String() string { return fmt.Sprintf("%s/%d", id.topic, id.partition) }

// part is an owned partition. Guarded by source.mu.
type part struct {
	id       partitionID
	progress *offsets.Progress // nil until the first record, if the group had no position
	entries  map[int64]*entry  // arrived and not settled
	delays   []offsets.Delay   // of records nacked by the previous owner
	epoch    int32             // the leader's, of the last record; -1 if not known
	busy     int               // entries that run or are being put
	held     int               // bytes of entries that do not run
	idle     chan struct{}     // capacity 1: signals that busy was 0
	leaving  bool              // being given up
	paused   bool              // not fetched

	changed, committed int // number of settlements and nacks, and how many of them were committed
}

// state of an entry: ready → running → waiting → running … → putting → settled.
type state uint8

const (
	ready   state = iota // to be returned by Receive
	running              // returned, and not settled
	waiting              // for the time when it is due
	putting              // into the dead letters
	settled
)

// entry is an arrived record. Guarded by source.mu, except fields that are written once.
type entry struct {
	id      partitionID
	in      incarnation
	record  *kgo.Record
	meta    *message.Meta
	damaged error // of the headers

	part       *part // nil: its partition was lost
	state      state
	due        time.Time // of waiting; zero means now
	timer      timers.Timer[*entry]
	settlement message.Settlement // of putting
}

func (e *entry) name() string {
	return fmt.Sprintf("%v/%d", e.id, e.record.Offset)
}

func (e *entry) size() int { return len(e.record.Key) + len(e.record.Value) }

func (p *part) release() {
	if p.busy--; p.busy == 0 {
		wake(p.idle)
	}
}

func (p *part) settle(e *entry) {
	e.state = settled
	p.held -= e.size()
	p.progress.Settle(e.record.Offset)
	delete(p.entries, e.record.Offset)
	p.changed++
}

func (p *part) metadata(limit int) string {
	var delays []offsets.Delay
	for _, e := range p.entries {
		if e.state == waiting && e.due.After(e.meta.Due) { // the next owner reads the header too
			o := e.record.Offset
			delays = append(delays, offsets.Delay{Span: offsets.Span{From: o, To: o + 1}, Due: milliseconds(e.due)})
		}
	}
	slices.SortFunc(delays, func(a, b offsets.Delay) int { return int(max(-1, min(1, a.From-b.From))) })
	for _, d := range p.delays { // records that arrive later
		d.From = max(d.From, p.progress.Next())
		if d.From < d.To {
			delays = append(delays, d)
		}
	}
	return p.progress.Encode(delays, limit)
}

// milliseconds rounds up (law D3).
func milliseconds(t time.Time) int64 {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++
	}
	return ms
}
