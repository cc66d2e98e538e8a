package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/message"
)

// server is a queue for sources in one process. It obeys all rules of the suite, and can
// be made to break each of them.
type server struct {
	wrong string // the fault of the server

	mu     sync.Mutex
	items  []*item
	ended  bool
	serial int
}

type item struct {
	value string
	id    string
	due   time.Time
	until time.Time // of the lease, or zero
	fence int
	holds *client
}

type client struct {
	s       *server
	ended   chan struct{}
	beating chan struct{}
	closed  bool
	failed  error
}

const testLease = 200 * time.Millisecond

func (s *server) is(wrong string) bool { return s.wrong == wrong }

func (s *server) put(values ...string) error {
	for _, v := range values {
		s.serial++
		id := strconv.Itoa(s.serial)
		if s.is("same ids") {
			id = "1"
		}
		s.items = append(s.items, &item{value: v, id: id})
	}
	return nil
}

func (s *server) open() (delivery.Source[string], error) {
	c := &client{s: s, ended: make(chan struct{}), beating: make(chan struct{})}
	go func() {
		defer close(c.beating)
		for {
			select {
			case <-c.ended:
				return
			case <-time.After(testLease / 4):
			}
			s.mu.Lock()
			for _, it := range s.items {
				if it.holds == c && !s.is("lease not extended") {
					it.until = time.Now().Add(testLease)
				}
			}
			s.mu.Unlock()
		}
	}()
	return c, nil
}

func (c *client) kill() {
	close(c.ended)
	<-c.beating
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.closed = true
	if c.s.is("killed loses") {
		c.s.items = slices.DeleteFunc(c.s.items, func(it *item) bool { return it.holds == c })
	}
}

func (c *client) Receive(ctx context.Context, n int) ([]message.Message[string], error) {
	s := c.s
	if s.is("oversized") {
		n = 10
	}
	for first := true; ; first = false {
		s.mu.Lock()
		var ms []message.Message[string]
		if c.closed && !s.is("receives after Close") {
			s.mu.Unlock()
			return nil, errors.New("closed")
		}
		if ctx.Err() != nil {
			s.mu.Unlock()
			if s.is("wrong error of a cancel") {
				return nil, errors.New("cancelled")
			}
			return nil, context.Cause(ctx)
		}
		now := time.Now()
		for _, it := range s.items {
			if s.is("holds up") && it.due.After(now) {
				break
			}
			free := it.holds == nil || !it.until.After(now) || s.is("no leases") && it.holds != c || s.is("twice") && it.holds == c && !it.due.Add(50*time.Millisecond).After(now)
			if free && !it.due.After(now) && len(ms) < n {
				it.holds, it.until = c, now.Add(testLease)
				it.fence++
				ms = append(ms, c.newMessage(it, it.fence))
			}
		}
		end := s.ended && (len(s.items) == 0 || s.is("early end"))
		s.mu.Unlock()
		switch {
		case len(ms) > 0 && s.is("no acknowledgement"):
			return []message.Message[string]{{Value: ms[0].Value}}, nil
		case len(ms) > 0 && s.is("messages with errors"):
			return ms, errors.New("and an error")
		case len(ms) > 0 && s.is("late cancel") && first && n == 2: // its messages are neither returned nor released
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(time.Millisecond):
			}
			return ms, nil
		case len(ms) > 0:
			return ms, nil
		case s.is("none"):
			return nil, nil
		case end && s.is("wrapped end"):
			return nil, fmt.Errorf("end: %w", io.EOF)
		case end:
			return nil, io.EOF
		}
		ended := c.ended
		if s.is("receives after Close") {
			ended = nil
		}
		select {
		case <-ctx.Done():
		case <-ended:
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *client) newMessage(it *item, fence int) message.Message[string] {
	s := c.s
	id := it.id
	if s.is("new ids") {
		id += "." + strconv.Itoa(fence)
	}
	return message.New(it.value, &message.Meta{ID: id}, func(v message.Settlement) {
		s.mu.Lock()
		defer s.mu.Unlock()
		lost := it.holds != c || it.fence != fence
		if s.is("stale settlements count") || s.is("settled after Close") {
			lost = false
		}
		if lost || c.closed && !s.is("settled after Close") && !s.is("stale settlements count") {
			return
		}
		if !v.Kind.IsRedelivered() && !(s.is("comes again after Ack") && v.Kind == message.Done || s.is("comes again after Reject") && v.Kind == message.Rejected) {
			s.items = slices.DeleteFunc(s.items, func(other *item) bool { return other == it })
			return
		}
		if s.is("lost after Nack") {
			s.items = slices.DeleteFunc(s.items, func(other *item) bool { return other == it })
			return
		}
		if s.is("early") {
			v.Delay /= 2
		}
		it.holds, it.due = nil, time.Now().Add(v.Delay)
		if s.is("stays with its source") {
			it.holds = c
			it.until = time.Now().Add(testLease)
		}
	})
}

func (c *client) Close(context.Context) error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		if s.is("second Close") {
			return errors.New("closed already")
		}
		return nil
	}
	c.closed = true
	close(c.ended)
	for _, it := range s.items {
		if it.holds == c {
			it.holds = nil
		}
		if s.is("delay lost over Close") {
			it.due = time.Time{}
		}
	}
	if s.is("Close loses") {
		s.items = nil
	}
	return nil
}

func serverQueue(wrong string) Queue[string] {
	s := &server{wrong: wrong}
	return Queue[string]{
		Open: s.open, Put: s.put, End: func() { s.mu.Lock(); s.ended = true; s.mu.Unlock() }, Keeps: true, Shared: true, Lease: testLease,
		Kill: func(source delivery.Source[string]) { source.(*client).kill() },
	}
}

// channelQueue is a channel as a queue. Its values are put before its only source is
// opened.
func channelQueue() Queue[string] {
	c := make(chan string, 200)
	return Queue[string]{
		Open: func() (delivery.Source[string], error) { return channel.NewSource(c, nil), nil },
		Put: func(values ...string) error {
			for _, v := range values {
				c <- v
			}
			return nil
		},
		End: func() { close(c) },
	}
}

// check runs a rule in a bubble, where waiting takes no real time.
func check(t *testing.T, r sourceRule[string], open func() Queue[string]) (err error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		q := queue[string]{Queue: open(), value: strconv.Itoa, patience: 3 * time.Second}
		err = q.run(r)
	})
	return err
}

func TestRunSourceAcceptsSoundSources(t *testing.T) {
	for _, r := range sourceRules[string]() {
		t.Run(r.name, func(t *testing.T) {
			require.NoError(t, check(t, r, func() Queue[string] { return serverQueue("") }))
			if r.skip(channelQueue()) == "" {
				require.NoError(t, check(t, r, channelQueue))
			}
		})
	}
}

// In real time, as users run it.
func TestRunSource(t *testing.T) {
	RunSource(t, func(t *testing.T) Queue[string] {
		t.Parallel()
		return channelQueue()
	}, strconv.Itoa)
}

// Each rule finds its faults.
func TestRunSourceFindsFaults(t *testing.T) {
	const worker = "a worker (delivery.Run) does each message, and releases what it does not finish"
	for wrong, names := range map[string][]string{
		"comes again after Ack":    {"what was acknowledged does not come again", worker},
		"comes again after Reject": {"what was rejected does not come again"},
		"lost after Nack":          {"what was nacked comes again, with the same id", worker},
		"new ids":                  {"what was nacked comes again, with the same id", "Close records what was settled before, and releases the rest"},
		"early":                    {"what was nacked does not come before its delay is over, and holds up nothing"},
		"holds up":                 {"what was nacked does not come before its delay is over, and holds up nothing"},
		"twice":                    {"a message that is not settled is not delivered twice"},
		"oversized":                {"between one and n messages, and a wait for the first"},
		"none":                     {"between one and n messages, and a wait for the first"},
		"no acknowledgement":       {"between one and n messages, and a wait for the first"},
		"messages with errors":     {"between one and n messages, and a wait for the first"},
		"late cancel":              {"a wait that is cancelled loses nothing"},
		"wrong error of a cancel":  {"a wait that is cancelled loses nothing"},
		"same ids":                 {"ids are different for different messages"},
		"receives after Close":     {"Close ends Receive"},
		"second Close":             {"Close ends Receive"},
		"Close loses":              {"Close records what was settled before, and releases the rest", worker},
		"settled after Close":      {"what is settled after Close changes nothing"},
		"delay lost over Close":    {"a delay goes on over a Close"},
		"no leases":                {"two sources share the queue", "what one source releases another one gets"},
		"stays with its source":    {"what one source releases another one gets"},
		"lease not extended":       {"a lease is extended until its message is settled"},
		"killed loses":             {"a killed source loses nothing but its leases"},
		"stale settlements count":  {"what is settled after Close changes nothing", "a killed source loses nothing but its leases"},
		"early end":                {"the end, when all is done"},
		"wrapped end":              {"the end, when all is done"},
	} {
		for _, r := range sourceRules[string]() {
			if slices.Contains(names, r.name) {
				assert.Error(t, check(t, r, func() Queue[string] { return serverQueue(wrong) }), "%s: %s", wrong, r.name)
			}
		}
	}
}

// A source that ends the goroutine, as a failing require does, is a failure and no hang.
func TestWithin_Goexit(t *testing.T) {
	_, err := within(time.Minute, "Close", func(context.Context) (int, error) { runtime.Goexit(); return 0, nil })
	require.EqualError(t, err, "Close has ended its goroutine")
}
