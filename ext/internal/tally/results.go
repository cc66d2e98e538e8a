package tally

import "github.com/weirflow/weir/exactlyonce/server"

func ofResults(label string, of func(s *server.Stats) uint64) Value[server.Stats] {
	return Value[server.Stats]{Label: label, Of: func(s *server.Stats) int64 { return int64(of(s)) }}
}

// Results are the metrics of the server.
var Results = []Metric[server.Stats]{
	{
		Name: "answers.clients", Help: "Clients that are remembered.", Unit: "client", Gauge: true,
		Of: []Value[server.Stats]{ofResults("", func(s *server.Stats) uint64 { return uint64(s.Clients) })},
	},
	{
		Name: "answers.records", Help: "Requests that run or have an answer.", Unit: "request", Gauge: true,
		Of: []Value[server.Stats]{ofResults("", func(s *server.Stats) uint64 { return uint64(s.Records) })},
	},
	{
		Name: "answers.in_progress", Help: "Requests that run.", Unit: "request", Gauge: true,
		Of: []Value[server.Stats]{ofResults("", func(s *server.Stats) uint64 { return uint64(s.InProgress) })},
	},
	{
		Name: "answers.bytes", Help: "Bytes that answers take, as they count for MaxBytes.", Unit: "By", Gauge: true,
		Of: []Value[server.Stats]{ofResults("", func(s *server.Stats) uint64 { return uint64(max(0, s.Bytes)) })},
	},
	{
		Name: "answers.requests", Help: "Attempts of requests, by what became of them.", Unit: "request", Label: "outcome",
		Of: []Value[server.Stats]{
			ofResults("new", func(s *server.Stats) uint64 { return s.New }),
			ofResults("attached", func(s *server.Stats) uint64 { return s.Attached }),
			ofResults("replayed", func(s *server.Stats) uint64 { return s.Replayed }),
			ofResults("stale", func(s *server.Stats) uint64 { return s.Stale }),
			ofResults("invalid", func(s *server.Stats) uint64 { return s.Invalid }),
			ofResults("mismatch", func(s *server.Stats) uint64 { return s.Mismatched }),
			ofResults("full", func(s *server.Stats) uint64 { return s.Refused }),
			ofResults("too_many_waiting", func(s *server.Stats) uint64 { return s.TooManyWaiting }),
		},
	},
}
