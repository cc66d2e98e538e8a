package checkpointtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
)

// Setup is the storage of the snapshots of one test.
type Setup struct {
	// Open opens a store, also after another was closed, with the saved snapshots. At
	// most one store is open at a time.
	Open func() (checkpoint.Store, error)
	// TakeOver opens a store on the same storage for another run, so that the open store
	// loses it. If it is nil, because such stores lock their storage or are not shared,
	// the rules about it are not checked.
	TakeOver func() (checkpoint.Store, error)
	// Fail makes the n-th call fail that the open store makes from now on to its disk or
	// server. n counts from 1; 0 ends the failures. If Fail is nil, calls fail only by
	// the end of their contexts.
	Fail func(n int)
	// Damage spoils a stored snapshot, while no store is open. If it is nil, the rules
	// about damage are not checked.
	Damage func(id uint64) error
}

// RunStore checks stores against the rules of [checkpoint.Store], in a subtest for each
// rule. newSetup returns new, empty storage; the stores must keep at least the last three
// snapshots.
func RunStore(t *testing.T, newSetup func(t *testing.T) Setup) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			setup := newSetup(t)
			if r.damages && setup.Damage == nil {
				t.Skip("the storage cannot be damaged")
			}
			if r.takesOver && setup.TakeOver == nil {
				t.Skip("the storage cannot be taken over")
			}
			if err := r.check(setup); err != nil {
				t.Error(err)
			}
		})
	}
}

// rule is a rule for stores. check returns an error if a store breaks it, so that tests
// of the suite can check broken stores.
type rule struct {
	name      string
	check     func(Setup) error
	damages   bool
	takesOver bool
}

var rules = []rule{
	{name: "an empty store returns ErrNotFound", check: emptyStoreNotFound},
	{name: "Load returns the saved snapshot", check: savedIsLoaded},
	{name: "many pieces and large states", check: piecesAndLargeStates},
	{name: "a snapshot belongs to the caller", check: snapshotBelongsToCaller},
	{name: "numbers only grow", check: numbersOnlyGrow},
	{name: "the same snapshot again", check: sameSnapshotAgain},
	{name: "a failed Save is repeated", check: failedSaveIsRepeated},
	{name: "the loser of a takeover is fenced", check: loserIsFenced, takesOver: true},
	{name: "invalid snapshots are refused", check: invalidIsRefused},
	{name: "the newest snapshots are kept", check: newestAreKept},
	{name: "a cancelled Save does not change the store", check: cancelledSaveKeepsStore},
	{name: "a reopened store continues", check: reopenedContinues},
	{name: "a closed store returns ErrClosed", check: closedReturnsErrClosed},
	{name: "concurrent use", check: concurrentUse},
	{name: "damage is detected", check: damageIsDetected, damages: true},
	{name: "damaged numbers are not reused", check: damagedNumbersStayTaken, damages: true},
	{name: "a store with only damaged snapshots is not empty", check: allDamagedIsNotEmpty, damages: true},
}

var background = context.Background()

func open(p Setup, f func(s checkpoint.Store) error) error {
	s, err := p.Open()
	if err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	err = f(s)
	if closeErr := s.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("closing: %w", closeErr))
	}
	return err
}

func snapshot(id uint64) *checkpoint.Snapshot {
	return &checkpoint.Snapshot{
		ID:   id,
		Kind: checkpoint.Kind(id % 3),
		Time: time.Date(2026, 1, 2, 3, 4, 5, 123_456_789, time.UTC).Add(time.Duration(id) * time.Hour),
		States: map[string]participant.State{
			"source":   {fmt.Appendf(nil, "position %d", id)},
			"operator": {[]byte("elements "), nil, {0, 0xff}, fmt.Appendf(nil, "%d", id)},
			"sink":     {},
		},
	}
}

func save(s checkpoint.Store, ids ...uint64) error {
	for _, id := range ids {
		if err := s.Save(background, snapshot(id)); err != nil {
			return fmt.Errorf("saving %d: %w", id, err)
		}
	}
	return nil
}

func differ(got, want *checkpoint.Snapshot) error {
	switch {
	case got == nil:
		return errors.New("got no snapshot")
	case got.ID != want.ID:
		return fmt.Errorf("got number %d, want %d", got.ID, want.ID)
	case got.Kind != want.Kind:
		return fmt.Errorf("checkpoint %d: got the kind %v, want %v", got.ID, got.Kind, want.Kind)
	case !got.Time.Equal(want.Time):
		return fmt.Errorf("checkpoint %d: got time %v, want %v", got.ID, got.Time, want.Time)
	case !slices.Equal(got.Names(), want.Names()):
		return fmt.Errorf("checkpoint %d: got the participants %q, want %q", got.ID, got.Names(), want.Names())
	}
	for name, state := range want.States {
		if !bytes.Equal(got.States[name].Bytes(), state.Bytes()) {
			return fmt.Errorf("checkpoint %d: the state of %q differs: got %d bytes, want %d",
				got.ID, name, got.States[name].Size(), state.Size())
		}
	}
	return nil
}

func holds(s checkpoint.Store, want *checkpoint.Snapshot) error {
	got, err := s.Load(background, want.ID)
	if err != nil {
		return fmt.Errorf("loading %d: %w", want.ID, err)
	}
	return differ(got, want)
}

func latest(s checkpoint.Store, id uint64) error {
	got, skipped, err := checkpoint.Latest(background, s)
	if err != nil || len(skipped) > 0 {
		return fmt.Errorf("looking for the latest, %d: error %v, skipped %v", id, err, skipped)
	}
	return differ(got, snapshot(id))
}

func list(s checkpoint.Store) ([]uint64, error) {
	entries, err := s.List(background)
	if err != nil {
		return nil, fmt.Errorf("listing: %w", err)
	}
	ids := make([]uint64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
		if i > 0 && ids[i-1] >= e.ID {
			return nil, fmt.Errorf("the list is not in ascending order: %v", entries)
		}
	}
	return ids, nil
}

func emptyStoreNotFound(p Setup) error {
	return open(p, func(s checkpoint.Store) error {
		ids, err := list(s)
		if err != nil || len(ids) > 0 {
			return fmt.Errorf("an empty store lists %v, error %v", ids, err)
		}
		if _, err := s.Load(background, 1); !errors.Is(err, checkpoint.ErrNotFound) {
			return fmt.Errorf("an empty store loads with error %v, want ErrNotFound", err)
		}
		if _, _, err := checkpoint.Latest(background, s); !errors.Is(err, checkpoint.ErrNotFound) {
			return fmt.Errorf("the latest of an empty store: error %v, want ErrNotFound", err)
		}
		return nil
	})
}

func savedIsLoaded(p Setup) error {
	long := strings.Repeat("ä", maxNameLength/2)
	cases := []*checkpoint.Snapshot{
		snapshot(1),
		{ID: 2, States: nil}, // the zero time
		{ID: 3, Time: time.Unix(-1, 1), States: map[string]participant.State{"nothing": nil}},
		{ID: 5, Time: time.Now(), States: map[string]participant.State{"a": {{1}}, "b": {{2}}, "a/b": {{3}}, "A": {{4}}, "../x": {{5}}}},
		{ID: 1 << 40, Time: time.Unix(1<<35, 0), States: map[string]participant.State{long: {{1}}, "\x00": {{2}}, " ": {{3}}}},
		{ID: 1<<64 - 1, Time: time.Unix(0, 999_999_999).In(time.FixedZone("X", 3600))},
	}
	return open(p, func(s checkpoint.Store) error {
		for _, c := range cases {
			if err := s.Save(background, c); err != nil {
				return fmt.Errorf("saving %d: %w", c.ID, err)
			}
			if err := holds(s, c); err != nil {
				return err
			}
		}
		return nil
	})
}

func piecesAndLargeStates(p Setup) error {
	large := make([]byte, 3<<20)
	for i := range large {
		large[i] = byte(i * i >> 3)
	}
	small := make(participant.State, 10_000)
	for i := range small {
		small[i] = fmt.Appendf(nil, "%d,", i)
	}
	want := &checkpoint.Snapshot{ID: 1, States: map[string]participant.State{
		"large": {large}, "small": small, "mixed": {large[:7], large[7 : 1<<20], nil, {1}, large[1<<20:]},
	}}
	return open(p, func(s checkpoint.Store) error {
		if err := s.Save(background, want); err != nil {
			return err
		}
		return holds(s, want)
	})
}

func snapshotBelongsToCaller(p Setup) error {
	return open(p, func(s checkpoint.Store) error {
		mine := snapshot(1)
		if err := s.Save(background, mine); err != nil {
			return err
		}
		spoil(mine)
		got, err := s.Load(background, 1)
		if err != nil {
			return err
		}
		if err := differ(got, snapshot(1)); err != nil {
			return fmt.Errorf("a change of the saved snapshot is seen: %w", err)
		}
		spoil(got)
		if err := holds(s, snapshot(1)); err != nil {
			return fmt.Errorf("a change of the loaded snapshot is seen: %w", err)
		}
		return nil
	})
}

func spoil(s *checkpoint.Snapshot) {
	for _, state := range s.States {
		for _, piece := range state {
			clear(piece)
		}
	}
	clear(s.States)
	s.ID, s.Time = 77, time.Time{}
}

func numbersOnlyGrow(p Setup) error {
	return open(p, func(s checkpoint.Store) error {
		if err := save(s, 5, 9); err != nil {
			return err
		}
		for _, id := range []uint64{9, 8, 5, 1} {
			err := s.Save(background, other(id))
			taken, ok := errors.AsType[*checkpoint.NumberError](err)
			if !ok {
				return fmt.Errorf("saving %d after 9: error %v, want a *NumberError", id, err)
			}
			if taken.Checkpoint != id || taken.Newest != 9 {
				return fmt.Errorf("saving %d after 9: the error says %d after %d", id, taken.Checkpoint, taken.Newest)
			}
		}
		if ids, err := list(s); err != nil || !slices.Equal(ids, []uint64{5, 9}) {
			return fmt.Errorf("after refused numbers the list is %v, error %v, want 5 and 9", ids, err)
		}
		return errors.Join(holds(s, snapshot(5)), holds(s, snapshot(9)), latest(s, 9))
	})
}

func other(id uint64) *checkpoint.Snapshot {
	s := snapshot(id)
	s.States = map[string]participant.State{"other": {{1}}}
	return s
}

// sameSnapshotAgain repeats a successful Save, whose result may be lost.
func sameSnapshotAgain(p Setup) error {
	return open(p, func(s checkpoint.Store) error {
		if err := save(s, 1, 2); err != nil {
			return err
		}
		for range 2 {
			if err := s.Save(background, snapshot(2)); err != nil {
				return fmt.Errorf("saving the same snapshot again: %w", err)
			}
		}
		if ids, err := list(s); err != nil || !slices.Equal(ids, []uint64{1, 2}) {
			return fmt.Errorf("after saving 2 three times the list is %v, error %v, want 1 and 2", ids, err)
		}
		if _, ok := errors.AsType[*checkpoint.NumberError](s.Save(background, other(2))); !ok {
			return errors.New("another snapshot is saved with the number of one that was saved again")
		}
		return errors.Join(holds(s, snapshot(1)), latest(s, 2), save(s, 3), latest(s, 3))
	})
}

// failedSaveIsRepeated repeats Save after each of its steps has failed.
func failedSaveIsRepeated(p Setup) error {
	const failures = 40
	id := uint64(0)
	again := func(s checkpoint.Store, step string, save func() error) error {
		if err := save(); err != nil {
			if err := s.Save(background, snapshot(id)); err != nil {
				return fmt.Errorf("saving again after %s failed: %w", step, err)
			}
		}
		return latest(s, id)
	}
	return open(p, func(s checkpoint.Store) error {
		for n := range failures {
			id++
			err := again(s, fmt.Sprintf("its context ended at call %d of the context", n+1), func() error {
				return s.Save(newFickle(n), snapshot(id))
			})
			if err == nil && p.Fail != nil {
				id++
				err = again(s, fmt.Sprintf("call %d", n+1), func() error {
					p.Fail(n + 1)
					defer p.Fail(0)
					return s.Save(background, snapshot(id))
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// fickle is a context that ends after a number of calls.
type fickle struct {
	context.Context //nolint:containedctx // wrapped by a context
	cancel          context.CancelFunc

	mu   sync.Mutex
	left int // guarded by mu
}

func newFickle(n int) context.Context {
	ctx, cancel := context.WithCancel(background)
	return &fickle{Context: ctx, cancel: cancel, left: n}
}

func (f *fickle) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left--; f.left < 0 {
		f.cancel()
	}
}

func (f *fickle) Err() error {
	f.look()
	return f.Context.Err()
}

func (f *fickle) Done() <-chan struct{} {
	f.look()
	return f.Context.Done()
}

// loserIsFenced lets another run take over the storage (law P1).
func loserIsFenced(p Setup) (err error) {
	loser, err := p.Open()
	if err != nil {
		return err
	}
	if err := save(loser, 1, 2); err != nil {
		return err
	}
	owner, err := p.TakeOver()
	if err != nil {
		return fmt.Errorf("taking over: %w", err)
	}
	defer func() { err = errors.Join(err, loser.Close(), owner.Close()) }()
	fenced := func(when string, ids ...uint64) error {
		for _, id := range ids {
			if err := loser.Save(background, other(id)); !errors.Is(err, checkpoint.ErrFenced) {
				return fmt.Errorf("%s, the loser saves %d with error %v, want ErrFenced", when, id, err)
			}
		}
		return nil
	}
	if err := errors.Join(latest(owner, 2), fenced("after the takeover", 3, 9)); err != nil {
		return err
	}
	if err := save(owner, 3, 4); err != nil {
		return fmt.Errorf("the owner: %w", err)
	}
	if err := fenced("after the owner has saved 4", 3, 4, 5, 6); err != nil { // used and unused numbers
		return err
	}
	if ids, err := list(owner); err != nil || slices.Contains(ids, 9) {
		return fmt.Errorf("after what the loser has tried the list is %v, error %v", ids, err)
	}
	return errors.Join(latest(owner, 4), save(owner, 5), latest(owner, 5))
}

func invalidIsRefused(p Setup) error {
	named := func(name string) *checkpoint.Snapshot {
		return &checkpoint.Snapshot{ID: 2, States: map[string]participant.State{name: {{1}}}}
	}
	cases := map[string]*checkpoint.Snapshot{
		"nil":           nil,
		"number 0":      {States: map[string]participant.State{"a": {{1}}}},
		"no known kind": {ID: 2, Kind: checkpoint.Suspend + 1},
		"no name":       named(""),
		"a long name":   named(strings.Repeat("x", maxNameLength+1)),
		"a name's text": named("\xff"),
	}
	return open(p, func(s checkpoint.Store) error {
		if err := save(s, 1); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			want := cases[name].Validate()
			if err := s.Save(background, cases[name]); err == nil || !strings.Contains(err.Error(), want.Error()) {
				return fmt.Errorf("saving a snapshot with %s: error %v, want the error of Validate: %w", name, err, want)
			}
		}
		return errors.Join(latest(s, 1), save(s, 2)) // number 2 is unused
	})
}

func newestAreKept(p Setup) error {
	const last = 20
	err := open(p, func(s checkpoint.Store) error {
		for id := uint64(1); id <= last; id++ {
			if err := errors.Join(save(s, id), latest(s, id)); err != nil {
				return err
			}
			ids, err := list(s)
			if err != nil {
				return err
			}
			for _, kept := range ids {
				if err := holds(s, snapshot(kept)); err != nil {
					return fmt.Errorf("it is listed, but: %w", err)
				}
			}
			for want := max(id, 3) - 2; want <= id; want++ {
				if !slices.Contains(ids, want) {
					return fmt.Errorf("after %d the store has %v", id, ids)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return open(p, func(s checkpoint.Store) error { return latest(s, last) })
}

func cancelledSaveKeepsStore(p Setup) error {
	return open(p, func(s checkpoint.Store) error {
		if err := save(s, 1); err != nil {
			return err
		}
		cause := errors.New("the checkpoint took too long")
		ctx, cancel := context.WithCancelCause(background)
		cancel(cause)
		if err := s.Save(ctx, snapshot(2)); !errors.Is(err, cause) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("saving under a context that was cancelled: error %v, want its cause", err)
		}
		if ids, err := list(s); err != nil || !slices.Equal(ids, []uint64{1}) {
			return fmt.Errorf("after a cancelled save of 2 the list is %v, error %v, want 1", ids, err)
		}
		return errors.Join(latest(s, 1), save(s, 3), latest(s, 3))
	})
}

func reopenedContinues(p Setup) error {
	if err := open(p, func(s checkpoint.Store) error { return save(s, 3, 4) }); err != nil {
		return err
	}
	err := open(p, func(s checkpoint.Store) error {
		ids, err := list(s)
		if err != nil || !slices.Equal(ids, []uint64{3, 4}) {
			return fmt.Errorf("a reopened store lists %v, error %v, want 3 and 4", ids, err)
		}
		if err := s.Save(background, other(4)); err == nil {
			return errors.New("a reopened store takes number 4 a second time")
		}
		if err := s.Save(background, snapshot(4)); err != nil {
			return fmt.Errorf("saving what was saved last again, after reopening: %w", err)
		}
		return errors.Join(holds(s, snapshot(3)), latest(s, 4), save(s, 7))
	})
	if err != nil {
		return err
	}
	return open(p, func(s checkpoint.Store) error { return latest(s, 7) })
}

func closedReturnsErrClosed(p Setup) error {
	s, err := p.Open()
	if err != nil {
		return err
	}
	if err := save(s, 1); err != nil {
		return err
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		return fmt.Errorf("closing twice: %w", err)
	}
	_, loadErr := s.Load(background, 1)
	_, listErr := s.List(background)
	for call, err := range map[string]error{"Save": s.Save(background, snapshot(2)), "Load": loadErr, "List": listErr} {
		if !errors.Is(err, checkpoint.ErrClosed) {
			return fmt.Errorf("%s after Close: error %v, want ErrClosed", call, err)
		}
	}
	return open(p, func(s checkpoint.Store) error { return latest(s, 1) })
}

// concurrentUse saves the same numbers in several goroutines, while others read.
func concurrentUse(p Setup) error {
	const savers, readers, last = 4, 2, 25
	return open(p, func(s checkpoint.Store) error {
		c := &concurrent{store: s, saved: map[uint64]int{}, done: make(chan struct{})}
		var saving, reading sync.WaitGroup
		for saver := range savers {
			saving.Go(func() { c.save(byte(saver), last) })
		}
		for range readers {
			reading.Go(c.read)
		}
		saving.Wait()
		close(c.done)
		reading.Wait()
		for id, n := range c.saved {
			if n > 1 {
				c.fail(fmt.Errorf("number %d was saved %d times", id, n))
			}
		}
		if got, _, err := checkpoint.Latest(background, s); err != nil || got.ID != last {
			c.fail(fmt.Errorf("the latest is %v, error %v, want %d", got, err, last))
		}
		return errors.Join(c.errs...)
	})
}

type concurrent struct {
	store checkpoint.Store
	done  chan struct{} // closed when all numbers are saved

	mu    sync.Mutex
	saved map[uint64]int // how often; guarded by mu
	errs  []error        // guarded by mu
}

func (c *concurrent) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

func (c *concurrent) save(saver byte, last uint64) {
	for id := uint64(1); id <= last; id++ {
		mine := snapshot(id)
		mine.States["saver"] = participant.State{{saver}}
		err := c.store.Save(background, mine)
		if err == nil {
			c.mu.Lock()
			c.saved[id]++
			c.mu.Unlock()
		} else if _, taken := errors.AsType[*checkpoint.NumberError](err); !taken {
			c.fail(err)
		}
	}
}

func (c *concurrent) read() {
	newest := uint64(0)
	for {
		select {
		case <-c.done:
			return
		default:
		}
		entries, err := c.store.List(background)
		if err != nil {
			c.fail(err)
			return
		}
		if len(entries) == 0 {
			continue
		}
		id := entries[len(entries)-1].ID
		if id < newest {
			c.fail(fmt.Errorf("the newest was %d, and then %d", newest, id))
		}
		newest = id
		if err := c.load(id); err != nil {
			c.fail(err)
		}
	}
}

func (c *concurrent) load(id uint64) error {
	got, err := c.store.Load(background, id)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	delete(got.States, "saver")
	return differ(got, snapshot(id))
}

func damaged(p Setup, ids ...uint64) error {
	if err := open(p, func(s checkpoint.Store) error { return save(s, 1, 2, 3) }); err != nil {
		return err
	}
	for _, id := range ids {
		if err := p.Damage(id); err != nil {
			return fmt.Errorf("damaging %d: %w", id, err)
		}
	}
	return nil
}

func damageIsDetected(p Setup) error {
	if err := damaged(p, 3, 1); err != nil {
		return err
	}
	return open(p, func(s checkpoint.Store) error {
		for _, id := range []uint64{3, 1} {
			_, err := s.Load(background, id)
			damage, ok := errors.AsType[*checkpoint.CorruptError](err)
			if !ok || damage.Checkpoint != id || damage.Reason == "" {
				return fmt.Errorf("loading %d, which is damaged: error %v, want a *CorruptError with number and reason", id, err)
			}
		}
		got, skipped, err := checkpoint.Latest(background, s)
		if err != nil || len(skipped) != 1 || skipped[0].Checkpoint != 3 {
			return fmt.Errorf("3 is damaged, the latest: error %v, skipped %v", err, skipped)
		}
		return differ(got, snapshot(2))
	})
}

func damagedNumbersStayTaken(p Setup) error {
	if err := damaged(p, 3); err != nil {
		return err
	}
	return open(p, func(s checkpoint.Store) error {
		if _, ok := errors.AsType[*checkpoint.NumberError](s.Save(background, other(3))); !ok {
			return errors.New("the number of a damaged snapshot is used again")
		}
		if err := save(s, 4); err != nil {
			return err
		}
		return errors.Join(latest(s, 4), holds(s, snapshot(2)))
	})
}

func allDamagedIsNotEmpty(p Setup) error {
	if err := damaged(p, 1, 2, 3); err != nil {
		return err
	}
	return open(p, func(s checkpoint.Store) error {
		got, skipped, err := checkpoint.Latest(background, s)
		if err == nil || errors.Is(err, checkpoint.ErrNotFound) || got != nil || len(skipped) != 3 {
			return fmt.Errorf("all is damaged, the latest: %v, error %v, skipped %v", got, err, skipped)
		}
		return nil
	})
}

// maxNameLength is as in [checkpoint.Snapshot.Validate].
const maxNameLength = 1024
