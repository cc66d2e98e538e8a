package jobs

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// Forecast counts the messages of a queue that match f by whether they may be sent back:
// see [store.Message.Repetition]. A merge leaves messages in place that are in doubt or
// to be looked at first, unless its Spec asks for them. now is the time for which it is
// asked. s is a [store.Inspector]; two of its methods are enough.
//
// Forecast reads all of them, page by page. If ctx ends meanwhile, it returns the counts
// so far, and an error.
func Forecast(ctx context.Context, s store.Lister, queue string, f store.Filter, now time.Time) (map[store.Repetition]int, error) {
	counts := map[store.Repetition]int{}
	err := storearg.Each(ctx, s, queue, f, func(e store.Entry) error {
		counts[e.Repetition(now)]++
		return nil
	})
	return counts, err
}
