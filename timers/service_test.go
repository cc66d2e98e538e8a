package timers

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// probe is a clock.Mock that counts the calls of a service, and can move just after a
// reading.
type probe struct {
	*clock.Mock
	readings  int
	afterRead func()        // runs after the next reading
	ahead     time.Duration // of the alarms

	alarms int          // calls of AfterFunc
	alarm  *clock.Timer // the last one, and its function
	ring   func()
}

func (p *probe) Since(t time.Time) time.Duration {
	p.readings++
	d := p.Mock.Since(t) + p.ahead
	if f := p.afterRead; f != nil {
		p.afterRead = nil
		f()
	}
	return d
}

func (p *probe) AfterFunc(d time.Duration, f func()) *clock.Timer {
	p.alarms++
	p.alarm, p.ring = p.Mock.AfterFunc(d, f), f
	return p.alarm
}

// bench is a service on a probe without a loop. It runs in a synctest bubble, where the
// calls of wake can be counted exactly.
type bench struct {
	*Service[string]
	t     *testing.T
	clock *probe
	wakes chan struct{}
}

func inBubble(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, clock: &probe{Mock: clock.NewMock()}, wakes: make(chan struct{}, 1000)}
		b.clock.Add(1234567 * time.Hour) // not zero
		b.Service = NewService[string](b.clock, func() { b.wakes <- struct{}{} })
		test(t, b)
	})
}

func (b *bench) arm(name string, due time.Duration) *Timer[string] {
	timer := &Timer[string]{Value: name}
	b.Arm(timer, due)
	return timer
}

// move moves the clock and returns how often wake was called.
func (b *bench) move(d time.Duration) int {
	b.clock.Add(d)
	synctest.Wait()
	n := len(b.wakes)
	for range n {
		<-b.wakes
	}
	return n
}

// due pops the timers that are due.
func (b *bench) due() (names []string) {
	for timer := b.PopDue(b.Now()); timer != nil; timer = b.PopDue(b.Now()) {
		names = append(names, timer.Value)
	}
	return names
}

// Law T1: never early, not even by a nanosecond; equal due times in arming order.
func TestPopDueIsNeverEarly(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.arm("c", 10*ms)
		b.arm("a", 10*ms-1)
		b.arm("d", 10*ms)
		b.arm("e", 10*ms+1)
		b.arm("b", 10*ms-1)
		b.move(10*ms - 2)
		assert.Empty(t, b.due())
		b.move(1)
		assert.Equal(t, []string{"a", "b"}, b.due())
		b.move(1)
		assert.Equal(t, []string{"c", "d"}, b.due())
		b.move(1)
		assert.Equal(t, []string{"e"}, b.due())
		assert.Nil(t, b.PopDue(b.Now()))
	})
}

func TestServiceNowAndTime_Instants(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		start := b.clock.Mock.Now()
		assert.Zero(t, b.Now())
		b.move(7 * ms)
		assert.Equal(t, 7*ms, b.Now())
		assert.Equal(t, start.Add(7*ms), b.Time(b.Now()))
		assert.Equal(t, start, b.Time(0))
		assert.Equal(t, start.Add(-ms), b.Time(-ms))
	})
}

// Law T1: an idle service does not have an alarm.
func TestIdleServiceSetsNoAlarm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		assert.True(t, b.Schedule())
		assert.Zero(t, b.clock.alarms)
		assert.Zero(t, b.clock.readings, "the clock is not even read")
		assert.Zero(t, b.move(1000*time.Hour))

		b.arm("a", b.Now()+ms)
		require.True(t, b.Schedule())
		assert.Equal(t, 1, b.move(ms))
		b.due()
		assert.True(t, b.Schedule())
		assert.Zero(t, b.move(1000*time.Hour), "idle again")
		b.Stop()
	})
}

func TestService_OneAlarm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		for i := range 1000 {
			b.arm("", 10*ms+time.Duration(i))
			require.True(t, b.Schedule())
		}
		assert.Equal(t, 1, b.clock.alarms)
		assert.Zero(t, b.move(10*ms-1))
		assert.Equal(t, 1, b.move(500), "the alarm of the first timer is the only one")
		assert.Len(t, b.due(), 500)
		require.True(t, b.Schedule())
		assert.Equal(t, 1, b.move(ms))
		assert.Len(t, b.due(), 500)
		assert.Equal(t, 1, b.clock.alarms, "it is used again")
	})
}

func TestEarlierTimerMovesTheAlarm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.arm("late", 100*ms)
		require.True(t, b.Schedule())
		b.arm("early", 10*ms)
		require.True(t, b.Schedule())
		assert.Zero(t, b.move(10*ms-1))
		assert.Equal(t, 1, b.move(1))
		assert.Equal(t, []string{"early"}, b.due())
		require.True(t, b.Schedule())
		assert.Zero(t, b.move(90*ms-1))
		assert.Equal(t, 1, b.move(1))
		assert.Equal(t, []string{"late"}, b.due())
	})
}

func TestLaterTimerLeavesTheAlarm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		early := b.arm("early", 10*ms)
		require.True(t, b.Schedule())
		b.arm("late", 100*ms)
		b.clock.readings = 0
		require.True(t, b.Schedule())
		require.True(t, b.Cancel(early))
		require.True(t, b.Schedule())
		assert.Equal(t, 2, b.clock.readings, "setting an alarm takes a second reading")

		assert.Equal(t, 1, b.move(10*ms), "in vain")
		assert.Empty(t, b.due())
		require.True(t, b.Schedule())
		assert.Zero(t, b.move(90*ms-1))
		assert.Equal(t, 1, b.move(1))
		assert.Equal(t, []string{"late"}, b.due())
	})
}

func TestStrayWakesAreHarmless(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.arm("a", 10*ms)
		for range 5 { // the loop was woken for another reason
			require.True(t, b.Schedule())
			assert.Empty(t, b.due())
			assert.Zero(t, b.move(ms))
		}
		assert.Equal(t, 1, b.clock.alarms)
		assert.Equal(t, 1, b.move(5*ms))
		assert.Equal(t, []string{"a"}, b.due())
	})
}

// A clock.Mock fires a Reset(0) only at its next Add, so the alarm must not be used for
// timers that are due.
func TestDueTimersAreNotLeftToTheAlarm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.move(10 * ms)
		for _, due := range []time.Duration{-ms, 0, 10*ms - 1, 10 * ms} {
			timer := b.arm("due", due)
			assert.False(t, b.Schedule(), "due at %v", due)
			assert.False(t, b.ScheduleAt(due), "due at %v", due)
			b.Cancel(timer)
		}
		assert.Zero(t, b.clock.alarms)

		b.arm("next", 10*ms+1)
		require.True(t, b.Schedule())
		require.Equal(t, 1, b.move(1))
		assert.False(t, b.Schedule(), "still there")
		assert.Equal(t, []string{"next"}, b.due())
		assert.True(t, b.Schedule())
	})
}

// An owner with other deadlines passes the earliest of all.
func TestScheduleAt(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.arm("a", 20*ms)
		require.True(t, b.ScheduleAt(10*ms))
		assert.Zero(t, b.move(10*ms-1))
		assert.Equal(t, 1, b.move(1))
		assert.False(t, b.ScheduleAt(10*ms))
		require.True(t, b.Schedule())
		require.True(t, b.ScheduleAt(30*ms), "the alarm for the timer comes earlier")
		assert.Equal(t, 1, b.move(10*ms))
		assert.Equal(t, []string{"a"}, b.due())
	})
}

// A mock clock may move between reading it and setting the alarm, which would then fire
// too late: after the last Add of a test, never.
func TestClockMovesBeforeTheAlarmIsSet(t *testing.T) {
	t.Run("a part of the way", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			for i := range 2 { // a new alarm, then the same alarm set again
				start := b.Now()
				b.arm("a", start+10*ms)
				b.clock.afterRead = func() { b.clock.Add(4 * ms) }
				require.True(t, b.Schedule(), "round %d", i)
				assert.Zero(t, b.move(6*ms-1))
				assert.Equal(t, 1, b.move(1))
				assert.Equal(t, []string{"a"}, b.due())
			}
		})
	})
	t.Run("step by step", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			b.arm("a", 10*ms)
			moves := 0
			var slip func()
			slip = func() {
				if moves++; moves < 9 {
					b.clock.Add(ms)
					b.clock.afterRead = slip
				}
			}
			b.clock.afterRead = slip
			require.True(t, b.Schedule())
			require.Equal(t, 8*ms, b.Now())
			assert.Zero(t, b.move(2*ms-1))
			assert.Equal(t, 1, b.move(1))
		})
	})
	t.Run("all the way", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bench) {
			b.arm("a", 10*ms)
			b.clock.afterRead = func() { b.clock.Add(10 * ms) }
			assert.False(t, b.Schedule())
			assert.Equal(t, []string{"a"}, b.due())

			b.arm("b", 30*ms) // the useless alarm for 20 ms does not count as pending
			require.True(t, b.ScheduleAt(25*ms))
			assert.Equal(t, 1, b.move(15*ms))
			require.True(t, b.Schedule())
			assert.Equal(t, 1, b.move(5*ms))
			assert.Equal(t, []string{"b"}, b.due())
		})
	})
	t.Run("hardly", func(t *testing.T) { // as a real clock always does
		inBubble(t, func(t *testing.T, b *bench) {
			b.arm("a", 10*ms)
			b.clock.afterRead = func() { b.clock.Add(settled - 1) }
			require.True(t, b.Schedule())
			assert.Equal(t, 2, b.clock.readings, "the alarm is not set a second time")
			assert.Equal(t, 1, b.move(10*ms))

			assert.Equal(t, []string{"a"}, b.due())
			b.arm("b", b.Now()+settled/4)
			b.clock.afterRead = func() { b.clock.Add(settled / 2) }
			assert.False(t, b.Schedule(), "it is due meanwhile")
		})
	})
}

// A clock.Mock first moves to an alarm's time and then, in a second step, ends the alarm
// and starts its function. If the loop resets the alarm in between, the new alarm is
// lost: the only sign is the call for the old time.
func TestAlarmEndedByTheOldRing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.arm("a", 10*ms)
		require.True(t, b.Schedule())
		b.move(10 * ms)
		assert.Equal(t, []string{"a"}, b.due())
		b.arm("b", 20*ms)
		require.True(t, b.Schedule())
		b.clock.alarm.Stop() // as in the second step of a Mock
		b.clock.ring()
		<-b.wakes

		assert.Empty(t, b.due())
		require.True(t, b.Schedule())
		assert.Equal(t, 1, b.move(10*ms))
		assert.Equal(t, []string{"b"}, b.due())
	})
}

// Mock.Add sets the time last, so an alarm that was set just before may be in the past
// without firing.
func TestAlarmThatTheClockPassedOver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.arm("a", 10*ms)
		require.True(t, b.Schedule())
		b.clock.alarm.Stop()
		b.clock.ahead = 10 * ms
		assert.Equal(t, []string{"a"}, b.due())
		b.arm("b", 30*ms)
		require.True(t, b.Schedule())
		assert.Equal(t, 1, b.move(20*ms))
		assert.Equal(t, []string{"b"}, b.due())
	})
}

func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.Stop() // without an alarm
		b.arm("a", 10*ms)
		require.True(t, b.Schedule())
		b.Stop()
		b.Stop()
		assert.Zero(t, b.move(20*ms))
		assert.Equal(t, []string{"a"}, b.due(), "the timers are still there")

		b.arm("b", 30*ms)
		require.True(t, b.Schedule())
		b.Stop()
		require.True(t, b.Schedule(), "whoever schedules again is woken again")
		assert.Equal(t, 1, b.move(10*ms))
	})
}

// Law T1 under random schedules: timers are in order and never early, and wake is called
// in time.
func TestServiceAgainstModel(t *testing.T) {
	for seed := range uint64(150) {
		inBubble(t, func(t *testing.T, b *bench) {
			r := rand.New(rand.NewPCG(seed, 2))
			var m heapModel
			service := NewService[int](b.clock, func() { b.wakes <- struct{}{} })
			pool := make([]Timer[int], 20)
			sleeping := false
			for range 60 {
				timer := &pool[r.IntN(len(pool))]
				woken := 0
				switch r.IntN(4) {
				case 0, 1:
					if !timer.Armed() {
						due := service.Now() + time.Duration(r.IntN(20)-2)*ms
						service.Arm(timer, due)
						m.armed = append(m.armed, armed{timer, due})
						sleeping = false
					}
				case 2:
					if i := m.index(timer); i >= 0 {
						service.Cancel(timer)
						m.armed = append(m.armed[:i], m.armed[i+1:]...)
					}
				case 3:
					woken = b.move(time.Duration(r.IntN(5)) * ms)
					if i := m.first(); sleeping && i >= 0 && m.armed[i].due <= service.Now() {
						require.Positive(t, woken, "seed %d: no wake-up for %v at %v", seed, m.armed[i].due, service.Now())
					}
				}
				if woken > 0 || r.IntN(3) == 0 { // the loop runs
					for {
						i := m.first()
						got := service.PopDue(service.Now())
						if i < 0 || m.armed[i].due > service.Now() {
							require.Nil(t, got, "seed %d: early", seed)
							break
						}
						require.Same(t, m.armed[i].timer, got, "seed %d", seed)
						m.armed = append(m.armed[:i], m.armed[i+1:]...)
					}
					sleeping = service.Schedule()
					require.True(t, sleeping, "seed %d", seed)
				}
			}
		})
	}
}

func TestScheduleAllocatesNothing(t *testing.T) {
	s := NewService[int](clock.New(), func() {})
	defer s.Stop()
	var timer, later Timer[int]
	s.Arm(&later, time.Hour)
	require.True(t, s.Schedule())
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		s.Arm(&timer, s.Now()+time.Minute)
		s.Schedule() // moves the alarm
		s.Cancel(&timer)
		s.PopDue(s.Now())
		s.Schedule()
		s.pending = false
	}))
}
