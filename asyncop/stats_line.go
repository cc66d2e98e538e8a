package asyncop

import (
	"log/slog"
	"math"
	"time"
)

// statsLine is the periodic line with the statistics: see WithStatsEvery. Owned by the loop.
type statsLine struct {
	armed bool          // a line is due
	since time.Duration // when it was armed: the first change after the last line, as the loop saw it
	last  Stats         // those of the last line, without OldestAge and LastError
}

// statsDue returns when the next line is due. If nothing has changed since the last one, and nothing is in flight, none is: an
// idle operator does not tick (law T1).
func (s *surface[IN, OUT]) statsDue() (due time.Duration, ok bool) {
	if s.statsEvery == 0 {
		return 0, false
	}
	if !s.armed {
		if _, changed := s.changedStats(); !changed {
			return 0, false
		}
		s.armed, s.since = true, s.driver.Core().Present()
	}
	return s.since + s.statsEvery, true
}

// changedStats returns the statistics, and whether the last line does not say all of them.
func (s *surface[IN, OUT]) changedStats() (now Stats, changed bool) {
	now = s.driver.Counts()
	same := now
	same.OldestAge, same.LastError = 0, nil
	return now, now.InFlight > 0 || same != s.last
}

// logStats writes the line if it is due.
func (s *surface[IN, OUT]) logStats() {
	if due, ok := s.statsDue(); ok && s.driver.Core().Present() >= due {
		now, _ := s.changedStats()
		s.writeStats(now)
	}
}

// logLastLines writes what is left to be said at the end: how many lines were suppressed, and the statistics.
func (s *surface[IN, OUT]) logLastLines() {
	s.logSuppressed(true)
	if now, changed := s.changedStats(); changed && s.statsEvery > 0 {
		s.writeStats(now)
	}
}

func (s *surface[IN, OUT]) writeStats(now Stats) {
	attrs := []slog.Attr{
		slog.Int64("accepted", now.Accepted), slog.Int64("in_flight", now.InFlight), slog.Int64("running", now.Running),
		slog.Int64("waiting", now.WaitingForRetry), slog.Int64("completed", now.Completed),
	}
	if took := s.driver.Core().Present() - s.since; s.armed && took > 0 {
		attrs = append(attrs, slog.Float64("per_second", rounded(float64(now.Completed-s.last.Completed)/took.Seconds())))
	}
	attrs = append(attrs, slog.Int64("attempts", now.Attempts), slog.Int64("retries", now.Retries()), slog.Int64("failures", now.Failures))
	for _, rare := range []struct {
		name string
		n    int64
	}{
		{"deciding", now.Deciding},
		{"waiting_for_key", now.WaitingForKey},
		{"timeouts", now.Timeouts},
		{"attempt_timeouts", now.AttemptTimeouts},
		{"exhausted", now.Exhausted},
		{"late_completions", now.LateCompletions},
		{"discarded", now.Discarded},
		{"abandoned", now.Abandoned},
	} {
		if rare.n > 0 {
			attrs = append(attrs, slog.Int64(rare.name, rare.n))
		}
	}
	if now.InFlight > 0 {
		attrs = append(attrs, slog.Duration("oldest_age", now.OldestAge.Round(time.Millisecond)))
	}
	s.armed, s.last = false, now
	s.last.OldestAge, s.last.LastError = 0, nil
	s.logAttrs(s.ctx, slog.LevelInfo, "asyncop: statistics", attrs...)
}

// rounded keeps one digit behind the point, and three digits at least of what is smaller.
func rounded(x float64) float64 {
	scale := 10.0
	if x > 0 && x < 10 {
		scale = math.Pow(10, 2-math.Floor(math.Log10(x)))
	}
	return math.Round(x*scale) / scale
}
