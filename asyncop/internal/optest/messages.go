package optest

import (
	"iter"
	"strings"
	"sync"

	"github.com/weirflow/weir/message"
)

// Settlements records the settlements of messages.
type Settlements struct {
	mu   sync.Mutex
	told map[string][]string // guarded by mu; by id
}

func (v *Settlements) Message(id string) message.Message[string] { return MessageOf(v, id, id) }

func MessageOf[T any](v *Settlements, id string, value T) message.Message[T] {
	return message.New(value, &message.Meta{ID: id}, func(settlement message.Settlement) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.told == nil {
			v.told = map[string][]string{}
		}
		v.told[id] = append(v.told[id], settlement.String())
		if id == "panics" {
			panic("the source is broken")
		}
	})
}

func (v *Settlements) Of(id string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.told[id], " ")
}

func (v *Settlements) All() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[string]string{}
	for id, told := range v.told {
		all[id] = strings.Join(told, " ")
	}
	return all
}

func Received[T any](ms ...message.Message[T]) iter.Seq2[message.Message[T], error] {
	return func(yield func(message.Message[T], error) bool) {
		for _, m := range ms {
			if !yield(m, nil) {
				return
			}
		}
	}
}
