package console

import (
	"context"
	"math"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	searchTime  = queryTime / 2 // for a page's search
	firstWindow = 10_000        // positions searched at once; doubles while that is quick
	quickWindow = searchTime / 20
)

// search lists up to pageSize matching messages behind a position. Few messages of a long
// queue may match, so it reads windows of positions, and ends after searchTime. Then
// reached is the last position it has read; it is 0 if the page is full, or the queue
// ends. If the filter has times, it reads the first window, and then only windows with
// messages of these times.
func (s *server) search(ctx context.Context, queue string, f store.Filter, after int64) (found []store.Entry, reached int64, err error) {
	if len(filterValues(queue, f)) == 1 {
		found, err = s.engine.List(ctx, queue, f, store.Page{After: after, Max: pageSize})
		return found, 0, err
	}
	begun := s.Clock.Now()
	searching, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	end := int64(math.MaxInt64)
	isNarrowed := false // the filter's times bound after and end
	for window := int64(firstWindow); ; {
		next, err := s.engine.List(ctx, queue, store.Filter{}, store.Page{After: after, Max: 1})
		if err != nil || len(next) == 0 || next[0].Position > end {
			return found, 0, err
		}
		windowBegun := s.Clock.Now()
		until := min(next[0].Position+window, end)
		list, err := s.engine.List(searching, queue, f, store.Page{After: after, Until: until, Max: pageSize - len(found)})
		isLate := err != nil && searching.Err() != nil && ctx.Err() == nil
		switch {
		case isLate && after > 0:
			return found, after, nil
		case err != nil:
			return found, 0, err
		}
		found = append(found, list...)
		switch {
		case len(found) == pageSize:
			return found, 0, nil
		case len(list) > 0: // there may be more in the window
			after = list[len(list)-1].Position
		default:
			after = until
		}
		if s.Clock.Since(begun) >= searchTime {
			return found, after, nil
		}
		if s.Clock.Since(windowBegun) < quickWindow {
			window *= 2
		}
		if !isNarrowed {
			isNarrowed = true
			span, err := storearg.ArrivedBetween(searching, s.engine, queue, f.Since, f.Before)
			switch {
			case err != nil && searching.Err() != nil && ctx.Err() == nil:
				return found, after, nil // the next page continues here
			case err != nil:
				return found, 0, err
			}
			after = max(after, span.After)
			end = span.Until
		}
	}
}
