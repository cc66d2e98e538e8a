package jobs

import (
	"cmp"
	"slices"
	"time"
)

// Unowned is the state of a [Partition] that no worker has.
const Unowned = "unowned"

// Partition is what a worker says of a part of an input.
type Partition struct {
	Pipeline string `json:"pipeline,omitempty"`
	Name     string `json:"name"`
	Epoch    uint64 `json:"epoch,omitempty"` // of its assignment to the worker; 0: it has none
	// State is one word: running, failing (its pipeline has failed, and has completed no checkpoint since), leaving, ended, or
	// [Unowned].
	State string `json:"state"`
	Lag   int64  `json:"lag"`           // elements that were not read yet, if the input knows; else -1
	Why   string `json:"why,omitempty"` // of failing: the last error
}

// InTrouble reports whether no worker has the partition, or its pipeline fails.
func (p *Partition) InTrouble() bool { return p.State == Unowned || p.State == "failing" }

// Owned is a partition and who has it.
type Owned struct {
	Partition
	Worker string    // its ID; "": no worker has it
	Seen   time.Time // when it was said
}

// Owners returns the partitions that workers name: those in trouble first, and by pipeline and name. If several have the same one, the one with the highest epoch has it. If
// another worker says later that nobody has it, and the owner has said nothing since, nobody has it: the owner was killed.
func Owners(workers []Worker) (list []Owned) {
	type key struct{ pipeline, name string }
	owned, unowned := map[key]Owned{}, map[key]Owned{}
	for _, w := range workers {
		for _, p := range w.Partitions {
			k, o := key{p.Pipeline, p.Name}, Owned{p, w.ID, w.Seen}
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
	slices.SortFunc(list, func(a, b Owned) int {
		return cmp.Or(byTrouble(&a.Partition, &b.Partition), cmp.Compare(a.Pipeline, b.Pipeline), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// byTrouble orders what is in trouble first.
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
