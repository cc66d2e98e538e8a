package tally

import "github.com/weirflow/weir/exactlyonce/keys"

func ofKeys(label string, of func(s *keys.Stats) uint64) Value[keys.Stats] {
	return Value[keys.Stats]{Label: label, Of: func(s *keys.Stats) int64 { return int64(of(s)) }}
}

// Keys are the metrics of requests with idempotency keys, in this process.
var Keys = []Metric[keys.Stats]{
	{
		Name: "keys.requests", Help: "Attempts of requests with an idempotency key, by what became of them.", Unit: "request", Label: "outcome",
		Of: []Value[keys.Stats]{
			ofKeys("new", func(s *keys.Stats) uint64 { return s.New }),
			ofKeys("resumed", func(s *keys.Stats) uint64 { return s.Resumed }),
			ofKeys("replayed", func(s *keys.Stats) uint64 { return s.Replayed }),
			ofKeys("in_progress", func(s *keys.Stats) uint64 { return s.InProgress }),
			ofKeys("mismatch", func(s *keys.Stats) uint64 { return s.Mismatched }),
			ofKeys("invalid", func(s *keys.Stats) uint64 { return s.Invalid }),
		},
	},
	{
		Name: "keys.runs.stale", Help: "Runs that were slower than their lock, and whose request another run has taken over.", Unit: "run",
		Of: []Value[keys.Stats]{ofKeys("", func(s *keys.Stats) uint64 { return s.Stale })},
	},
	{
		Name: "keys.collected", Help: "Finished requests that were removed since their retention is over.", Unit: "request",
		Of: []Value[keys.Stats]{ofKeys("", func(s *keys.Stats) uint64 { return s.Collected })},
	},
}

// KeyCounts are the metrics of the table.
var KeyCounts = []Metric[keys.Counts]{
	{
		Name: "keys.records", Help: "Requests in the table.", Unit: "request", Gauge: true,
		Of: []Value[keys.Counts]{{Of: func(c *keys.Counts) int64 { return int64(c.Records) }}},
	},
	{
		Name: "keys.unfinished", Help: "Requests in the table that are not finished.", Unit: "request", Gauge: true,
		Of: []Value[keys.Counts]{{Of: func(c *keys.Counts) int64 { return int64(c.Unfinished) }}},
	},
	{
		Name: "keys.overdue", Help: "Requests that are not finished and past their retention: Complete has given up on them.", Unit: "request",
		Gauge: true, Of: []Value[keys.Counts]{{Of: func(c *keys.Counts) int64 { return int64(c.Overdue) }}},
	},
	{
		Name: "keys.clients", Help: "Users with requests in the table.", Unit: "user", Gauge: true,
		Of: []Value[keys.Counts]{{Of: func(c *keys.Counts) int64 { return int64(c.Users) }}},
	},
}
