package delivery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/panics"
)

const (
	putRounds  = 5                // of a sink that takes nothing, before its messages are nacked
	nackDelay  = 10 * time.Second // of what the sink has refused
	putsInARow = 3                // that fail alone: then the fault is the sink's
)

// fill puts results into the sink until there are no more, and gives them back after a break. So the body of the loop never waits for long.
func (w *worker[IN, OUT]) fill(results <-chan Message[OUT]) {
	var left []Message[OUT]
	round, wait := 1, firstWait
	for open := true; open || len(left) > 0; {
		left, open = w.collect(results, left)
		var err error
		left, err = w.put(left)
		switch {
		case w.working.Err() != nil:
			giveBack(left)
			left = left[:0]
			continue
		case len(left) == 0:
			round, wait = 1, firstWait
			continue
		}
		w.logger.Warn("delivery: the sink has failed", slog.Any("error", err), slog.Int("messages", len(left)), slog.Int("try", round))
		if round == putRounds {
			w.refused(left, err)
			left, round, wait = left[:0], 1, firstWait
			continue
		}
		w.sleep(w.working, wait)
		round, wait = round+1, min(2*wait, lastWait)
	}
}

// collect adds results that are at hand to those that are left, and waits for the first if there is none. It returns false if there will
// be no more.
func (w *worker[IN, OUT]) collect(results <-chan Message[OUT], left []Message[OUT]) ([]Message[OUT], bool) {
	if len(left) == 0 {
		m, ok := <-results
		if !ok {
			return left, false
		}
		left = append(left, m)
	}
	for len(left) < w.batch {
		select {
		case m, ok := <-results:
			if !ok {
				return left, false
			}
			left = append(left, m)
		default:
			return left, true
		}
	}
	return left, true
}

// put puts messages into the sink, together and if that fails one by one, so that one of them does not hold up others (law D4). It
// returns those that are to be put again, all of them if the sink has taken none.
func (w *worker[IN, OUT]) put(ms []Message[OUT]) (left []Message[OUT], err error) {
	if len(ms) == 0 || w.working.Err() != nil {
		return ms, context.Cause(w.working)
	}
	if err = w.putSome(ms); err == nil {
		return nil, nil
	}
	all := slices.DeleteFunc(ms, func(m Message[OUT]) bool { return !m.Pending() }) // the sink may have settled some
	worked := len(all) < len(ms)
	if len(ms) == 1 {
		return all, err
	}
	for i := range all {
		if w.working.Err() != nil || !worked && i == putsInARow {
			return slices.Concat(all[i:], left), err // others first the next time
		}
		if failed := w.putSome(all[i : i+1]); failed != nil {
			left, err = append(left, all[i]), failed
		} else {
			worked = true
		}
	}
	if !worked {
		return left, err
	}
	w.refused(left, err)
	return nil, nil
}

// putSome puts messages into the sink, and acknowledges them then (law D1). One that the sink can never take is rejected (law W2).
func (w *worker[IN, OUT]) putSome(ms []Message[OUT]) error {
	refused := false
	err := guard.Call(func() error {
		err := w.sink.Put(w.working, ms)
		refused = errors.Is(err, ErrRefused)
		return err
	}, func(recovered any) error { return panics.New("delivery", recovered) })
	if refused && len(ms) == 1 {
		w.logger.Warn("delivery: the sink can never take a message: it is rejected", slog.Any("error", err), slog.String("id", ms[0].Meta().ID))
		ms[0].Reject(err)
		return nil
	}
	if err != nil {
		w.sinkFailed(err)
		return err
	}
	for _, m := range ms {
		m.Ack()
	}
	return nil
}

// refused nacks what the sink has not taken.
func (w *worker[IN, OUT]) refused(ms []Message[OUT], err error) {
	if len(ms) == 0 {
		return
	}
	w.logger.Warn("delivery: the sink does not take some messages, which come again", slog.Any("error", err),
		slog.Int("messages", len(ms)), slog.String("first", ms[0].Meta().ID), slog.Duration("delay", nackDelay))
	for _, m := range ms {
		m.Settle(Verdict{Kind: Nacked, Delay: nackDelay, Err: err})
	}
}
