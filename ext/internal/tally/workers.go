package tally

import "github.com/weirflow/weir/delivery"

var workerStates = []string{"starting", "receiving", "failing", "flooded", "paused", "draining", "ended"}

func ofWorker(label string, of func(s *delivery.Status) int) Value[delivery.Status] {
	return Value[delivery.Status]{Label: label, Of: func(s *delivery.Status) int64 { return int64(of(s)) }}
}

// Workers are the metrics of a worker.
var Workers = []Metric[delivery.Status]{
	{
		Name: "worker.messages.received", Help: "Messages that the worker has received.", Unit: "message",
		Of: []Value[delivery.Status]{ofWorker("", func(s *delivery.Status) int { return s.Received })},
	},
	{
		Name: "worker.messages.redelivered", Help: "Messages received that had failed in an earlier visit.", Unit: "message",
		Of: []Value[delivery.Status]{ofWorker("", func(s *delivery.Status) int { return s.Redelivered })},
	},
	{
		Name: "worker.messages.settled", Help: "Messages that the worker has settled, by how.", Unit: "message", Label: "settlement",
		Of: []Value[delivery.Status]{
			ofWorker("done", func(s *delivery.Status) int { return s.Done }),
			ofWorker("handed_over", func(s *delivery.Status) int { return s.HandedOver }),
			ofWorker("rejected", func(s *delivery.Status) int { return s.Rejected }),
			ofWorker("failed", func(s *delivery.Status) int { return s.Failed }),
			ofWorker("released", func(s *delivery.Status) int { return s.Released }),
			ofWorker("purged", func(s *delivery.Status) int { return s.Purged }),
		},
	},
	{
		Name: "worker.leases.lost", Help: "Leases whose messages were delivered again while the worker had them.", Unit: "lease",
		Of: []Value[delivery.Status]{ofWorker("", func(s *delivery.Status) int { return s.LeasesLost })},
	},
	{
		Name: "worker.settlements.refused", Help: "How often the engine has refused to record how a message was settled.", Unit: "settlement",
		Of: []Value[delivery.Status]{ofWorker("", func(s *delivery.Status) int { return s.SettlementsRefused })},
	},
	{
		Name: "worker.floods", Help: "How often the flood guard has stopped the worker.", Unit: "flood",
		Of: []Value[delivery.Status]{ofWorker("", func(s *delivery.Status) int { return s.Floods })},
	},
	{
		Name: "worker.messages.in_flight", Help: "Messages that the worker has received and not settled.", Unit: "message", Gauge: true,
		Of: []Value[delivery.Status]{ofWorker("", func(s *delivery.Status) int { return s.InFlight })},
	},
	{
		Name: "worker.state", Help: "1 for the state that the worker is in, 0 for the others.", Unit: "worker", Gauge: true, Label: "state",
		Of: func() (all []Value[delivery.Status]) {
			for _, state := range workerStates {
				all = append(all, ofWorker(state, func(s *delivery.Status) int {
					if s.State == state {
						return 1
					}
					return 0
				}))
			}
			return all
		}(),
	},
}
