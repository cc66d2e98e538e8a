package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/delivery/store"
)

// knownCauses are the names of causes of dead letters. Filters also accept stored names.
var knownCauses = func() (names []string) {
	for _, c := range []store.Cause{
		store.Permanent, store.Exhausted, store.UnsafeToRepeat, store.Undecodable, store.Lapsed, store.Expired, store.Refused,
	} {
		names = append(names, c.String())
	}
	return names
}()

// filter holds the flags that select messages.
type filter struct {
	store.Filter
	cause, since, before string
}

func (f *filter) flags(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.IDs, "id", nil, "only the message with this `ID`; may be given several times")
	c.Flags().StringVar(&f.Key, "key", "", "only messages with this `KEY`")
	c.Flags().StringVar(&f.Source, "source", "", "only messages of this `SOURCE`")
	c.Flags().StringVar(&f.Provider, "provider", "", "only messages for this `PROVIDER`")
	c.Flags().StringVar(&f.cause, "cause", "", "only messages with this `CAUSE`: "+strings.Join(knownCauses, ", "))
	c.Flags().StringVar(&f.Reason, "reason", "", "only messages with this `REASON` in their history")
	c.Flags().StringVar(&f.Error, "error", "", "only messages whose last error has this `TEXT` in it")
	c.Flags().StringVar(&f.since, "since", "", "only messages that arrived at this `TIME` or later: 2026-01-31 (in UTC), 2026-01-31T15:04:05Z, or how long ago: 90m")
	c.Flags().StringVar(&f.before, "before", "", "only messages that arrived before this `TIME`")
}

// read returns the filter of the flags and the arguments ids.
func (f *filter) read(a *app, ids []string) (store.Filter, error) {
	var err error
	f.Since, err = a.parseTime("since", f.since)
	if err != nil {
		return store.Filter{}, err
	}
	f.Before, err = a.parseTime("before", f.before)
	if err != nil {
		return store.Filter{}, err
	}
	cause := store.CauseNamed(f.cause)
	if cause != "" && !slices.Contains(knownCauses, cause.String()) {
		return store.Filter{}, usagef("--cause %q: there are %s%s", f.cause, strings.Join(knownCauses, ", "), meant("", f.cause, knownCauses))
	}
	f.Cause = cause
	f.IDs = append(f.IDs, ids...)
	return f.Filter, nil
}

// parseTime parses a time, or a duration before now.
func (a *app) parseTime(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05Z", time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return a.clock.Now().Add(-d), nil
	}
	return time.Time{}, usagef("--%s %q: not a time such as 2026-01-31, 2026-01-31T15:04:05Z, or 90m for 90 minutes ago", flag, s)
}

func isAll(f store.Filter) bool {
	return len(f.IDs) == 0 && f.Key == "" && f.Source == "" && f.Provider == "" && f.Cause == "" && f.Reason == "" && f.Error == "" &&
		f.Since.IsZero() && f.Before.IsZero()
}
