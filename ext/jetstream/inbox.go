package jetstream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	first    = time.Second           // how long Take waits for a first message, or the answer that there is none
	another  = 50 * time.Millisecond // and for another one
	onePull  = 3 * time.Second       // how long the server keeps a request for a message
	unwanted = time.Second           // a message that came and was not taken goes back after it
)

// inbox has the messages of a foreign stream that came and were not taken. A request is sent when all are taken and no other one is at the
// server: so its bounds are those of the inbox. One that takes long goes on while its Take returns, and loses nothing. Guarded by foreign.mu.
type inbox struct {
	ms         []arrival
	request    *asked           // at the server; nil: there is none
	came       chan struct{}    // has room for one: a message came
	collecting int              // Takes that wait for that
	sweeping   bool             // a timer runs for what is not taken
	wakes      map[*func()]bool // of those that listen
}

// arrival is a message that came, and the time before which its lease did not begin.
type arrival struct {
	*nats.Msg
	came, at time.Time
}

// asked is a request at the server.
type asked struct {
	over   chan struct{}      // closed at its end
	err    error              // to be read after it
	cancel context.CancelFunc // nil: it does not wait for messages
}

func newInbox() inbox { return inbox{came: make(chan struct{}, 1), wakes: map[*func()]bool{}} }

// collect returns the messages that are there, with up to about room bytes.
func (f *foreign) collect(ctx context.Context, limit, room int) ([]arrival, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.collecting++
	defer func() { f.collecting-- }()
	got, size := f.takeOut(limit, room)
	if len(got) == limit || size >= room || f.request != nil {
		return got, nil
	}
	mine := f.ask(pull{Batch: limit - len(got), MaxBytes: room - size, NoWait: true})
	for {
		patience := first
		if len(got) > 0 {
			patience = another
		}
		f.mu.Unlock()
		over, late := f.more(ctx, mine, patience)
		f.mu.Lock()
		more, n := f.takeOut(limit-len(got), room-size)
		got, size = append(got, more...), size+n
		switch {
		case over && !errors.Is(mine.err, jetstream.ErrMaxBytesExceeded):
			return got, mine.err
		case late, over && (len(got) > 0 || f.request != nil):
			return got, nil
		case over:
			mine = f.ask(pull{Batch: 1, NoWait: true}) // one always fits
		}
	}
}

// more waits for a message, the end of a request, or for long enough.
func (f *foreign) more(ctx context.Context, a *asked, patience time.Duration) (over, late bool) {
	timer := f.s.clock.Timer(patience)
	defer timer.Stop()
	select {
	case <-a.over:
		return true, false
	case <-f.came:
		return false, false
	case <-timer.C:
	case <-ctx.Done():
	}
	return false, true
}

// takeOut takes messages up to that with which they have room bytes. Called with mu held.
func (f *foreign) takeOut(limit, room int) (got []arrival, size int) {
	n := 0
	for ; n < len(f.ms) && n < limit && size < room; n++ {
		size += len(f.ms[n].Data)
	}
	got = append(got, f.ms[:n]...)
	if f.ms = f.ms[n:]; len(f.ms) == 0 {
		f.ms = nil // the array keeps nothing that was taken
	}
	return got, size
}

// ask sends a request. Called with mu held, when there is no other one.
func (f *foreign) ask(r pull) *asked {
	life, cancel := context.WithCancel(f.s.life)
	a := &asked{over: make(chan struct{})}
	if !r.NoWait {
		a.cancel = cancel
	}
	f.request = a
	begun := f.s.clock.Now()
	go func() { // ends with the request, or the engine
		defer cancel()
		a.err = f.pull(life, r, func(m *nats.Msg) {
			now := f.s.clock.Now()
			if !r.NoWait && now.Sub(begun) <= r.Expires { // else it has waited here
				begun = now
			}
			f.arrive(arrival{m, now, begun})
		})
		f.mu.Lock()
		f.request = nil
		f.mu.Unlock()
		close(a.over)
	}()
	return a
}

// arrive keeps a message until it is taken.
func (f *foreign) arrive(m arrival) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ms = append(f.ms, m)
	select {
	case f.came <- struct{}{}:
	default:
	}
	if f.collecting == 0 {
		for wake := range f.wakes {
			(*wake)()
		}
	}
	if !f.sweeping {
		f.sweeping = true
		f.s.clock.AfterFunc(unwanted, func() { f.sweep(false) })
	}
}

// sweep gives back the messages that have not been taken for too long, or all.
func (f *foreign) sweep(all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.s.clock.Now()
	n := 0
	for ; n < len(f.ms) && (all || now.Sub(f.ms[n].came) >= unwanted); n++ {
		if at, err := f.ms[n].Metadata(); err == nil {
			f.noteGivenBack(at.Sequence.Stream)
		}
		_ = f.s.js.Conn().Publish(f.ms[n].Reply, []byte("-NAK")) // else it comes again after its lease
	}
	f.ms = f.ms[n:]
	if f.sweeping = len(f.ms) > 0; f.sweeping {
		f.s.clock.AfterFunc(f.ms[0].came.Add(unwanted).Sub(now), func() { f.sweep(false) })
	}
}

// await asks the server for one message, so that those that listen are woken when there is one.
func (f *foreign) await() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.request == nil && len(f.wakes) > 0 {
		f.ask(pull{Batch: 1, Expires: min(onePull, f.lease/3)}) // the next Take says what is wrong
	}
}

// listen calls wake when a message has come, until the function that it returns is called.
func (f *foreign) listen(ctx context.Context, wake func()) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakes[&wake] = true
	return func() {
		f.mu.Lock()
		delete(f.wakes, &wake)
		last, request := len(f.wakes) == 0, f.request
		var hs []*theirs
		var seqs []uint64
		if last {
			for seq := range f.suspects {
				if h := f.held[seq]; h != nil {
					hs, seqs = append(hs, h), append(seqs, seq)
				}
			}
			clear(f.suspects)
		}
		f.mu.Unlock()
		if !last {
			return
		}
		if request != nil && request.cancel != nil {
			request.cancel()
			<-request.over
		}
		f.sweep(true)
		ctx := context.WithoutCancel(ctx)
		_ = f.s.do(ctx, func(ctx context.Context) error { return f.nack(ctx, hs, seqs, "-NAK") }) // else they come again after their leases
	}
}
