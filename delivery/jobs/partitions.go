package jobs

import (
	"cmp"
	"slices"
	"time"
)

// Unowned is the state of a [Partition] without an owner.
const Unowned = "unowned"

// Partition is a worker's report about a part of an input: see package partitions.
type Partition struct {
	Pipeline string `json:"pipeline,omitempty"`
	Name     string `json:"name"`
	Epoch    uint64 `json:"epoch,omitempty"` // of its assignment to the worker; 0 if unassigned
	// State is running, failing (its pipeline has failed, and has not completed a
	// checkpoint since), leaving, ended or [Unowned].
	State string `json:"state"`
	Lag   int64  `json:"lag"`           // unread elements; -1 if unknown
	Why   string `json:"why,omitempty"` // of failing: the last error

	// Of [Owners]: the ID of its worker, or "", and when the worker reported.
	Worker string    `json:"-"`
	Seen   time.Time `json:"-"`
}

// InTrouble reports whether the partition is without an owner, or its pipeline fails.
func (p *Partition) InTrouble() bool { return p.State == Unowned || p.State == "failing" }

// Owners returns the partitions in the reports of workers, with their owners: partitions
// in trouble first, then by pipeline and name. Of several workers that report a
// partition, the highest epoch owns it. A partition is without an owner if a worker
// reports that, and the owner has not reported since: it was killed.
func Owners(workers []Worker) (list []Partition) {
	type key struct{ pipeline, name string }
	owned, unowned := map[key]Partition{}, map[key]Partition{}
	for _, w := range workers {
		for _, p := range w.Partitions {
			k, o := key{p.Pipeline, p.Name}, p
			o.Worker, o.Seen = w.ID, w.Seen
			of := owned
			if p.State == Unowned {
				of, o.Worker = unowned, ""
			}
			if before, ok := of[k]; !ok || cmp.Or(cmp.Compare(o.Epoch, before.Epoch), o.Seen.Compare(before.Seen)) > 0 {
				of[k] = o
			}
		}
	}
	for k, o := range unowned {
		if has, ok := owned[k]; !ok || o.Seen.Sub(has.Seen) > beatEach {
			owned[k] = o
		}
	}
	for _, o := range owned {
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b Partition) int {
		return cmp.Or(byTrouble(&a, &b), cmp.Compare(a.Pipeline, b.Pipeline), cmp.Compare(a.Name, b.Name))
	})
	return list
}

func byTrouble(a, b *Partition) int {
	switch {
	case a.InTrouble() == b.InTrouble():
		return 0
	case a.InTrouble():
		return -1
	default:
		return 1
	}
}
