package jobs

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/weirflow/weir/delivery/store"
)

// KeyState is the state of a key of a queue: its messages, and why workers make no calls
// for them.
type KeyState struct {
	store.KeyCounts
	Hold *KeyOrder // order that holds the key ([Jobs.HoldKey]), or nil
	Down *KeyDown  // workers' reports that the key is down ([KeysDown]), or nil
}

// IsCalled reports whether the key is neither held nor down.
func (s *KeyState) IsCalled() bool { return s.Hold == nil && s.Down == nil }

// KeyStates returns the counts of [Keys], and which keys people hold or workers report
// down. These keys come first, even without messages. It needs the time of Keys.
//
// Workers report every 20 s, each the 256 keys that have been down for longest, and only
// keys that are UTF-8. They do so if the tenants of their backend are the keys
// (backend.TenantBreaker).
func (j *Jobs) KeyStates(ctx context.Context, queue string, f KeyFilter) ([]KeyState, error) {
	stopped, err := j.stoppedKeys(ctx, queue, f.Contains)
	if err != nil {
		return nil, err
	}
	counts, err := countKeys(ctx, j.engine, queue, f, slices.Collect(maps.Keys(stopped)))
	if err != nil {
		return nil, err
	}
	list := make([]KeyState, 0, len(counts))
	first := 0 // keys in list that are held or down
	for _, c := range counts {
		state := KeyState{KeyCounts: c}
		why, isStopped := stopped[c.Key]
		if isStopped {
			state.Hold = why.Hold
			state.Down = why.Down
			first++
			delete(stopped, c.Key)
		}
		list = append(list, state)
	}
	// The other keys that are held or down lack messages, unless these fill the list.
	for _, key := range slices.Sorted(maps.Keys(stopped)) {
		list = slices.Insert(list, first, *stopped[key])
		first++
	}
	return list[:min(len(list), f.most())], nil
}

// stoppedKeys returns the keys of a queue that are held or down, and contain a text.
func (j *Jobs) stoppedKeys(ctx context.Context, queue, contains string) (map[string]*KeyState, error) {
	stopped := map[string]*KeyState{}
	of := func(key string) *KeyState {
		s := stopped[key]
		if s == nil {
			s = &KeyState{KeyCounts: store.KeyCounts{Key: key}}
			stopped[key] = s
		}
		return s
	}
	held, err := j.HeldKeys(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range held {
		if o.Queue == queue && strings.Contains(o.Key, contains) {
			of(o.Key).Hold = &o
		}
	}
	workers, err := j.Workers(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range KeysDown(workers, j.Clock.Now()) {
		if k.Queue == queue && strings.Contains(k.Key, contains) {
			of(k.Key).Down = &k
		}
	}
	return stopped, nil
}
