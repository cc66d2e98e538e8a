package jobs

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// Forecast counts what a merge would do with the messages of its queue at the time now:
// Done counts the messages that it would send back, and the other fields the messages
// that would stay ([Spec.SendsBack]). Of spec it uses Queue, Filter, MaxMerges,
// UnsafeToRepeat and LeaveLapsed. It reads all of the messages, page by page. If ctx ends
// meanwhile, it returns the counts so far, and an error.
func Forecast(ctx context.Context, s store.Lister, spec Spec, now time.Time) (Progress, error) {
	var p Progress
	err := storearg.Each(ctx, s, spec.Queue, spec.Filter, func(e store.Entry) error {
		if spec.SendsBack(&e, now, &p) {
			p.Done++
		}
		return nil
	})
	return p, err
}
