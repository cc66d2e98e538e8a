package timers

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// job runs on the loop at now, when its timer, due at due, was popped.
type job func(due, now time.Duration)

// loop is the event loop of doc.go: it owns a service, and arms and cancels timers for
// other goroutines.
type loop struct {
	service *Service[job]
	wake    chan struct{}
	wakes   int // number of wake-ups; read when the loop is blocked or has ended

	mu    sync.Mutex
	asked []func() // guarded by mu
	end   bool     // guarded by mu
}

func newLoop(c clock.Clock) *loop {
	l := &loop{wake: make(chan struct{}, 1)}
	l.service = NewService[job](c, l.wakeUp)
	return l
}

func (l *loop) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// ask runs f on the loop.
func (l *loop) ask(f func()) {
	l.mu.Lock()
	l.asked = append(l.asked, f)
	l.mu.Unlock()
	l.wakeUp()
}

func (l *loop) stop() {
	l.mu.Lock()
	l.end = true
	l.mu.Unlock()
	l.wakeUp()
}

func (l *loop) run() {
	defer l.service.Stop()
	for {
		l.mu.Lock()
		asked, end := l.asked, l.end
		l.asked = nil
		l.mu.Unlock()
		if end {
			return
		}
		for _, f := range asked {
			f()
		}
		for {
			now := l.service.Now()
			due, _ := l.service.Next()
			timer := l.service.PopDue(now)
			if timer == nil {
				break
			}
			timer.Value(due, now)
		}
		if l.service.Schedule() {
			<-l.wake
			l.wakes++
		}
	}
}

// Law T1 on the real clock in virtual time: every timer is popped at its exact instant.
func TestRealClockIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l := newLoop(clock.New())
		go l.run()
		r := rand.New(rand.NewPCG(1, 2))
		fired, cancelled := 0, 0
		for i := range 500 {
			delay := time.Duration(r.Int64N(int64(time.Minute)))
			cancelDelay := time.Duration(r.Int64N(int64(time.Minute)))
			l.ask(func() {
				timer := &Timer[job]{Value: func(due, now time.Duration) {
					assert.Equal(t, due, now)
					assert.Equal(t, due, time.Since(start))
					fired++
				}}
				l.service.Arm(timer, l.service.Now()+delay)
				if i%5 == 0 {
					l.service.Arm(&Timer[job]{Value: func(_, _ time.Duration) {
						if l.service.Cancel(timer) {
							cancelled++
						}
					}}, l.service.Now()+cancelDelay)
				}
			})
			time.Sleep(time.Duration(r.IntN(200)) * ms)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.Zero(t, l.service.Len())
		assert.Equal(t, 500, fired+cancelled)
		assert.Positive(t, cancelled)

		// An idle service is not woken for a year.
		wakes := l.wakes
		time.Sleep(365 * 24 * time.Hour)
		synctest.Wait()
		assert.Equal(t, wakes, l.wakes)

		l.stop()
		synctest.Wait() // or the bubble reports a deadlock
	})
}

// A timer that is armed while the loop sleeps on a later alarm.
func TestRealClockEarlierTimerWhileAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(clock.New())
		go l.run()
		var got []time.Duration
		note := func(_, now time.Duration) { got = append(got, now) }
		l.ask(func() { l.service.Arm(&Timer[job]{Value: note}, time.Hour) })
		time.Sleep(time.Minute)
		l.ask(func() { l.service.Arm(&Timer[job]{Value: note}, 2*time.Minute) })
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		assert.Equal(t, []time.Duration{2 * time.Minute, time.Hour}, got)
		assert.Equal(t, 4, l.wakes, "asked twice, woken twice")
		l.stop()
	})
}

// One large Add passes many due times; the loop arms the next timer each time. Law T1:
// each timer is popped at its due time or later, in order, and all are popped.
func TestLargeStepsOfAMock(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, 100 * ms, 10 * ms, 7 * ms} {
		t.Run(step.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mock := clock.NewMock()
				l := newLoop(mock)
				go l.run()
				const timers, rounds = 20, 10
				fired := 0
				last := time.Duration(-1)
				for i := range timers {
					timer := new(Timer[job])
					left := rounds
					timer.Value = func(due, now time.Duration) {
						assert.GreaterOrEqual(t, now, due, "early")
						assert.GreaterOrEqual(t, due, last, "out of order")
						last = due
						fired++
						if left--; left > 0 {
							l.service.Arm(timer, due+10*ms) // a fixed rate
						}
					}
					l.ask(func() { l.service.Arm(timer, time.Duration(i)*ms) })
				}
				synctest.Wait()
				for at := time.Duration(0); at < time.Second; at += step {
					mock.Add(step)
					synctest.Wait()
				}
				assert.Equal(t, timers*rounds, fired)
				l.stop()
				synctest.Wait()
			})
		})
	}
}

// On real goroutines, with a mock that is moved without waiting for the loop, timers are
// neither early nor lost.
func TestMockMovesWhileTheLoopWorks(t *testing.T) {
	mock := clock.NewMock()
	l := newLoop(mock)
	ended := make(chan struct{})
	go func() { defer close(ended); l.run() }()
	const n = 100
	done := make(chan struct{})
	fired := 0
	timer := new(Timer[job])
	timer.Value = func(due, now time.Duration) {
		assert.GreaterOrEqual(t, now, due)
		if fired++; fired == n {
			close(done)
			return
		}
		l.service.Arm(timer, now+ms)
	}
	l.ask(func() { l.service.Arm(timer, ms) })
	deadline := time.After(2 * time.Minute)
	for waiting := true; waiting; {
		mock.Add(ms / 2)
		select {
		case <-done:
			waiting = false
		case <-deadline:
			require.FailNow(t, "timers were lost", "%d of %d", fired, n)
		default:
		}
	}
	l.stop()
	<-ended
}

// Start and stop, many times: the loop ends in any state of the alarm.
func TestStartStop(t *testing.T) {
	for i := range 300 {
		l := newLoop(clock.New())
		ended := make(chan struct{})
		go func() { defer close(ended); l.run() }()
		l.ask(func() {
			l.service.Arm(&Timer[job]{Value: func(_, _ time.Duration) {}}, time.Duration(i)*time.Microsecond)
		})
		if i%2 == 0 {
			time.Sleep(time.Duration(i) * time.Microsecond) // shortly before and after the alarm
		}
		l.stop()
		<-ended
	}
}
