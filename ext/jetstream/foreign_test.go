package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// delivered returns a message that was delivered so many times.
func delivered(seq, times int, data string) *nats.Msg {
	return &nats.Msg{Subject: "s", Reply: fmt.Sprintf("$JS.ACK.F.c.%d.%d.%d.1.0", times, seq, seq), Data: []byte(data), Sub: &nats.Subscription{}}
}

// hasTwo answers a request with two messages that were delivered a second time.
func hasTwo(_ context.Context, _ pull, got func(*nats.Msg)) error {
	got(delivered(1, 2, "x"))
	got(delivered(2, 2, "x"))
	return nil
}

// slow is a stream that answers after a time.
type slow struct{ jetstream.Stream }

func (slow) GetLastMsgForSubject(context.Context, string) (*jetstream.RawStreamMsg, error) {
	time.Sleep(5 * time.Second)
	return nil, jetstream.ErrMsgNotFound
}

type connected struct{ jetstream.JetStream }

func (connected) Conn() *nats.Conn { return &nats.Conn{} }

func newForeign(t *testing.T) *foreign {
	t.Helper()
	s := &Engine{life: t.Context(), js: connected{}, stream: slow{}, clock: clock.New(), logger: slog.New(slog.DiscardHandler)}
	return &foreign{
		asking:  make(chan struct{}, 1),
		Foreign: Foreign{Stream: "F", Consumer: "c"}, s: s, queue: "q", consumer: &struct{ jetstream.Consumer }{}, pull: hasTwo, lease: 15 * time.Second,
		held: map[uint64]*theirs{}, givenBack: map[uint64]struct{}{}, suspects: map[uint64]store.Leased{}, inbox: newInbox(),
	}
}

// Law P1: a lease begins when the message is delivered, also if it takes long to look at it.
func TestAForeignLeaseBeginsBeforeItIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForeign(t)
		taken, err := f.take(t.Context(), 2, storearg.MaxBytes, time.Second)
		if err != nil || len(taken) != 1 {
			t.Fatal(taken, err)
		}
		both := []store.Lease{{Queue: "q", Entry: "F/1", Fence: 2}, {Queue: "q", Entry: "F/2", Fence: 2}}
		time.Sleep(10*time.Second - 1)
		if _, _, kept, _ := f.leasesOf(both, true); len(kept) != 2 {
			t.Fatal("it has ended too early")
		}
		time.Sleep(1)
		if _, _, kept, _ := f.leasesOf(both, true); len(kept) != 0 {
			t.Fatal("it has not ended")
		}
	})
}

// Regression: what was noted of messages that come again was asked for one after the other, and their leases ended meanwhile.
func TestManyMessagesThatComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForeign(t)
		f.pull = func(_ context.Context, _ pull, got func(*nats.Msg)) error {
			for seq := range 100 {
				got(delivered(seq+1, 2, "x"))
			}
			return nil
		}
		taken, err := f.take(t.Context(), 100, storearg.MaxBytes, time.Second)
		if err != nil || len(taken) != 1 || len(f.suspects) != 99 {
			t.Fatal(taken, len(f.suspects), err)
		}
		leases := make([]store.Lease, 100)
		for i := range leases {
			leases[i] = store.Lease{Queue: "q", Entry: fmt.Sprintf("F/%d", i+1), Fence: 2}
		}
		if _, _, _, lost := f.leasesOf(leases, true); len(lost) > 0 {
			t.Fatal(len(lost), "leases have ended")
		}
	})
}

// away is a stream that does not answer.
type away struct{ jetstream.Stream }

func (away) GetLastMsgForSubject(context.Context, string) (*jetstream.RawStreamMsg, error) {
	return nil, nats.ErrTimeout
}

// Law P1: a message whose provider cannot be read is not returned, and comes again.
func TestAProviderThatCannotBeRead(t *testing.T) {
	f := newForeign(t)
	f.s.stream = away{}
	f.pull = func(_ context.Context, _ pull, got func(*nats.Msg)) error {
		got(delivered(1, 2, "before"))
		got(delivered(2, 1, "new"))
		return nil
	}
	taken, err := f.take(t.Context(), 2, storearg.MaxBytes, time.Second)
	if !errors.Is(err, nats.ErrTimeout) || len(taken) != 1 || string(taken[0].Payload) != "new" || len(f.held) != 1 || len(f.suspects) != 0 {
		t.Fatal(taken, len(f.held), len(f.suspects), err)
	}
}

// A request that takes long outlives its Take, which returns what has come. Its messages are returned by the next one, in their order: were they
// given up, they would come again after their leases.
func TestWhatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForeign(t)
		var asked []pull
		f.pull = func(_ context.Context, r pull, got func(*nats.Msg)) error {
			if asked = append(asked, r); len(asked) > 1 {
				return nil
			}
			got(delivered(1, 1, "one"))
			time.Sleep(time.Second)
			got(delivered(2, 1, "two"))
			got(delivered(3, 1, "three"))
			return nil
		}
		take := func(limit int) (got []string) {
			taken, err := f.take(t.Context(), limit, 1000, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range taken {
				got = append(got, string(l.Payload))
			}
			return got
		}
		begun := time.Now()
		got := take(10)
		if took := time.Since(begun); len(got) != 1 || took != another {
			t.Fatal(got, took)
		}
		if got := take(10); len(got) != 0 {
			t.Fatal("nothing more has come:", got)
		}
		time.Sleep(time.Second)
		if got := append(take(1), take(1)...); !slices.Equal(got, []string{"two", "three"}) {
			t.Fatal(got)
		}
		if want := []pull{{Batch: 10, MaxBytes: 1000, NoWait: true}}; !slices.Equal(asked, want) {
			t.Fatal("it has asked for more than it has room for:", asked)
		}
		take(10)
		synctest.Wait()
		if len(asked) != 2 {
			t.Fatal(asked)
		}
	})
}

// Laws D2, P1: a message that waits until it can be alone may have gone to another worker, or have come again.
func TestWhatWaitsToBeAloneIsNotReturnedAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForeign(t)
		wait := func() {
			at := &nats.MsgMetadata{Sequence: nats.SequencePair{Stream: 1}, NumDelivered: 2}
			if _, suspect := f.hold(arrival{Msg: delivered(1, 2, "x"), at: time.Now()}, &look{at: at}); !suspect {
				t.Fatal("it is no suspect")
			}
		}
		wait()
		time.Sleep(15*time.Second - 1)
		if got := f.alone(); len(got) != 1 {
			t.Fatal("before its end:", got)
		}
		delete(f.held, 1) // it is given back
		wait()
		time.Sleep(15 * time.Second)
		if got := f.alone(); len(got) != 0 || len(f.held) != 0 || len(f.suspects) != 0 {
			t.Fatal("after its end:", got, f.held)
		}
		wait()
		f.held[1] = &theirs{leased: time.Now(), fence: 3}
		if got := f.alone(); len(got) != 0 || len(f.held) != 1 || len(f.suspects) != 0 {
			t.Fatal("after another delivery:", got, f.held)
		}
	})
}

// Law D2: a message in flight that is delivered again waited to be alone, and its acknowledgement was dropped: it ran twice.
func TestWhatIsInFlightAndComesAgainIsSettledByItsFirstLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForeign(t)
		deliveries := [][]*nats.Msg{{delivered(1, 1, "M")}, {delivered(1, 2, "M"), delivered(2, 1, "N")}}
		f.pull = func(_ context.Context, _ pull, got func(*nats.Msg)) error {
			for _, m := range deliveries[0] {
				got(m)
			}
			deliveries = deliveries[1:]
			return nil
		}
		take := func(want ...string) {
			taken, err := f.take(t.Context(), 2, storearg.MaxBytes, time.Second)
			var got []string
			for _, l := range taken {
				got = append(got, fmt.Sprint(string(l.Payload), l.Lease.Fence))
			}
			if err != nil || !slices.Equal(got, want) {
				t.Fatal(got, err, "instead of", want)
			}
		}
		take("M1")
		before, seqs, _, _ := f.leasesOf([]store.Lease{{Queue: "q", Entry: "F/1", Fence: 1}}, false) // of an acknowledgement that is under way
		take("M2", "N1")
		first, second := store.Lease{Queue: "q", Entry: "F/1", Fence: 1}, store.Lease{Queue: "q", Entry: "F/1", Fence: 2}
		f.drop([]store.Lease{first})
		if hs, _, _, _ := f.leasesOf([]store.Lease{first}, false); len(hs) != 1 {
			t.Fatal("the first lease does not acknowledge it")
		}
		if _, _, kept, _ := f.leasesOf([]store.Lease{first, second}, true); !slices.Equal(kept, []store.Lease{second}) {
			t.Fatal("these can give it back:", kept)
		}
		f.drop([]store.Lease{second})
		if hs, _, _, _ := f.leasesOf([]store.Lease{second}, false); len(hs) != 0 {
			t.Fatal("it was not dropped")
		}
		f.held[1] = &theirs{fence: 2}
		before[0].confirmed = true
		if err := f.settle(t.Context(), before, seqs, "+ACK"); err != nil || f.held[1] != nil {
			t.Fatal("what is acknowledged is held:", f.held[1], err)
		}
	})
}

// Law P1: a message that a pause kept in the connection was taken for one that had just been delivered, with all of its lease.
func TestALeaseDoesNotBeginAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newForeign(t)
		const lease = 6 * time.Second
		f.lease = lease
		for came, want := range map[time.Duration]int{time.Second: 1, lease + time.Second: 0} {
			var asked pull
			f.pull = func(_ context.Context, r pull, got func(*nats.Msg)) error {
				asked = r
				time.Sleep(came)
				got(delivered(1, 1, "x"))
				return nil
			}
			f.listen(t.Context(), func() {})
			f.await()
			time.Sleep(came)
			synctest.Wait()
			taken, err := f.take(t.Context(), 1, storearg.MaxBytes, time.Second)
			if err != nil || len(taken) != 1 {
				t.Fatal(taken, err)
			}
			if _, _, kept, _ := f.leasesOf([]store.Lease{taken[0].Lease}, true); len(kept) != want || asked.Expires > lease/3 {
				t.Errorf("it came after %v, of a request that is kept for %v, and %d leases are valid", came, asked.Expires, len(kept))
			}
			clear(f.held)
		}
	})
}

// Law D4: those that were parked beside the message that kills are called before it dies for the third time. Ties were broken at random, so one
// could be parked at each death, and become a dead letter with it.
func TestWhatIsParkedBesideTheOneThatKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kills = 3
		left := []uint64{1, 2, kills, 4, 5}
		for deliveries := uint64(2); len(left) > 1; deliveries++ {
			if deliveries == 5 {
				t.Fatal("after three deaths there are still", left)
			}
			f := newForeign(t) // of a new process
			for _, seq := range left {
				at := &nats.MsgMetadata{Sequence: nats.SequencePair{Stream: seq}, NumDelivered: deliveries}
				f.hold(arrival{Msg: delivered(int(seq), int(deliveries), "x"), at: time.Now()}, &look{at: at})
			}
			for dies := false; !dies; {
				taken := f.alone()
				if len(taken) != 1 {
					t.Fatal(taken)
				}
				seq, _ := strconv.ParseUint(taken[0].Lease.Entry[len("F/"):], 10, 64)
				if dies = seq == kills; !dies {
					left = slices.DeleteFunc(left, func(one uint64) bool { return one == seq })
				}
			}
		}
	})
}
