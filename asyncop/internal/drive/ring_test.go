package drive

import (
	"context"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// A ring is a queue of bounded length, whatever the values of its indices.
func TestRingIsAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRing[int](rapid.IntRange(0, 9).Draw(t, "places"))
		start := rapid.SampledFrom([]uint64{0, 3, ^uint64(0) - 2}).Draw(t, "start") // the indices wrap around
		r.head.Store(start)
		r.tail.Store(start)
		r.seenTail, r.limit = start, start+uint64(len(r.buf))
		var model []int
		for i := range rapid.IntRange(0, 100).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "put") {
				if ok := r.put(i, call.Message{}); ok != (len(model) < len(r.buf)) {
					t.Fatalf("put: %v with %d of %d", ok, len(model), len(r.buf))
				} else if ok {
					model = append(model, i)
				}
			} else if v, _, ok := r.take(); ok != (len(model) > 0) || ok && v != model[0] {
				t.Fatalf("take: %v %v of %v", v, ok, model)
			} else if ok {
				model = model[1:]
			}
			if r.len() != len(model) || r.full() != (len(model) == len(r.buf)) || r.halfEmpty() != (len(model) <= len(r.buf)/2) {
				t.Fatalf("len %d, full %v, half empty %v with %d of %d", r.len(), r.full(), r.halfEmpty(), len(model), len(r.buf))
			}
		}
	})
}

func TestRingPlaces(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 4, 64: 64, 65: 128} {
		require.Len(t, newRing[int](n).buf, want)
	}
}

func TestRingKeepsNothing(t *testing.T) {
	r := newRing[*[64]byte](4)
	v := new([64]byte)
	gone := weak.Make(v)
	r.put(v, call.Message{})
	r.take()
	runtime.GC()
	require.Nil(t, gone.Value())
	runtime.KeepAlive(r)
}

// Two goroutines, with the race detector.
func TestRingBetweenGoroutines(t *testing.T) {
	const n = 20_000
	r := newRing[int](8)
	putter, taker := call.NewSleeper(), call.NewSleeper()
	go func() {
		for i := range n {
			for !r.put(i, call.Message{}) {
				putter.Sleep(r.full)
			}
			taker.WakeUp()
		}
	}()
	for i := range n {
		v, _, ok := r.take()
		for !ok {
			taker.Sleep(func() bool { return r.len() == 0 })
			v, _, ok = r.take()
		}
		if v != i {
			t.Fatalf("%d came as number %d", v, i)
		}
		if r.halfEmpty() {
			putter.WakeUp()
		}
	}
}

// A reader that has freed an entry and is about to wake the loop may be suspended until
// the loop has filled the ring again and gone to sleep. The loop is woken once more.
func TestLoopIsWokenAgain(t *testing.T) {
	woken := 0
	o := newOutlet[int](4, false, func() { woken++ })
	for round := range 3 {
		for o.ring.put(round, call.Message{}) {
		}
		require.False(t, o.lookForSpace())
		_, _, _ = o.next()
		require.Equal(t, round, woken, "not for a single place")
		_, _, _ = o.next()
		require.Equal(t, round+1, woken)
		require.True(t, o.lookForSpace())
		o.putterWaits.Store(false) // as that reader does, late
	}
}

// Values are asked for: as many as there are free slots, and as many more as became free
// before the first value came, if that many values came.
func TestRoomForWhatIsBrought(t *testing.T) {
	const slots = 10
	for name, of := range map[string]struct{ busy, brought, freed, later, want int }{
		"nothing ends":                {0, 10, 0, 0, 0},
		"some end":                    {4, 10, 4, 0, 2 * 4},
		"some end while others enter": {4, 10, 4, 3, 3 + 2*4},
		"all end":                     {9, 10, 9, 0, 2 * 9},
		"all end while others enter":  {0, 10, 0, 10, 10},
		"few come":                    {5, 1, 5, 0, 9 + 2*1},
		"none comes":                  {5, 0, 5, 0, 10},
		"the run ends":                {0, 10, 0, -10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInlet[int](64)
			room := slots - of.busy
			in.announceSlots(room)
			require.Equal(t, room, in.awaitSlots(t.Context()))
			room += of.freed
			in.announceSlots(room)
			for i := range of.brought {
				require.True(t, in.put(i, call.Message{}))
				in.take()
			}
			in.announceSlots(max(0, room-of.brought+of.later))
			ended, cancel := context.WithCancel(t.Context())
			if of.want == 0 {
				cancel()
			}
			require.Equal(t, of.want, in.awaitSlots(ended))
			cancel()
		})
	}
}

const all = -1

// bring asks for values, frees slots before the first value comes, and puts come values,
// at most as many as it has asked for. It returns the number that it has asked for.
func bring(t *testing.T, in *inlet[int], freed, come int) (asked int) {
	t.Helper()
	asked = in.awaitSlots(t.Context())
	if come == all {
		come = asked
	}
	in.announceSlots(in.freeSlots() + freed)
	for i := range come {
		require.True(t, in.put(i, call.Message{}))
		in.take()
	}
	return asked
}

// An estimate grows from round to round as long as all values that were asked for come.
// An idle time does not count.
func TestRoomAfterAnIdleTime(t *testing.T) {
	const slots = 100
	in := newInlet[int](4 * slots)
	in.announceSlots(slots)
	require.Equal(t, slots, bring(t, &in, 0, slots))
	in.announceSlots(1)
	require.Equal(t, 1, bring(t, &in, slots-1, 1), "it waits for a message, and all that run end")
	require.Equal(t, slots-1+2*1, bring(t, &in, 0, 0))
}

func TestRoomGrowsWithWhatComes(t *testing.T) {
	const slots = 100
	in := newInlet[int](16 * slots)
	var asked []int
	for range 7 {
		in.announceSlots(1)
		asked = append(asked, bring(t, &in, slots, all))
	}
	require.Equal(t, []int{1, 1 + 2*1, 1 + 2*5, 1 + 2*21, 1 + 2*85, 1 + 2*slots, 1 + 2*slots}, asked)
	in.announceSlots(1)
	require.Equal(t, 1+2*slots, bring(t, &in, slots, 5))
	in.announceSlots(1)
	require.Equal(t, 1+2*5, in.awaitSlots(t.Context()), "the source has no more")
}
