package killtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/predicates/httpretry"
)

const (
	permits = 16 // elements that are called for at once
	pause   = 10 * time.Millisecond
)

// client reads the stream, calls the service for each element, and takes checkpoints.
type client struct {
	settings
	tracker *exactlyonce.Tracker
	http    *http.Client
	permits chan struct{}
	slots   sync.WaitGroup

	mu       sync.Mutex
	state    clientState
	inFlight map[int64]context.Context // by position
}

// clientState is a checkpoint: what an operator and its source would store.
type clientState struct {
	Checkpoint uint64
	Tracker    []byte
	Position   int64           // of the source
	InFlight   map[int64]int64 // positions and their numbers
}

// call is the process of a client. It goes on from the last checkpoint, and prints a line first.
func call(s settings) error {
	c := &client{
		settings: s, permits: make(chan struct{}, permits), inFlight: map[int64]context.Context{},
		tracker: exactlyonce.NewTracker(exactlyonce.TrackerConfig{Window: 400}),
		http: &http.Client{
			Transport: exactlyonce.Transport(&http.Transport{MaxIdleConnsPerHost: 2 * permits}, s.URL+"/accounts/"),
			Timeout:   5 * time.Second,
		},
	}
	restored, err := c.restore()
	if err != nil {
		return err
	}
	fmt.Println("running")
	for _, position := range restored {
		c.begin(position)
	}
	ended := make(chan struct{})
	checkpoints := make(chan error, 1)
	go func() {
		for {
			select {
			case <-ended:
				checkpoints <- c.checkpoint()
				return
			case <-time.After(30 * time.Millisecond):
				if err := c.checkpoint(); err != nil {
					fail(err)
				}
			}
		}
	}()
	if err := c.read(); err != nil {
		return err
	}
	c.slots.Wait()
	close(ended)
	return <-checkpoints
}

// fail ends the process: nothing of this can happen.
func fail(err error) {
	fmt.Println("FAILED:", err)
	os.Exit(1)
}

// restore reads the last checkpoint, or takes the first one. It returns the positions in flight, in the order of the input.
func (c *client) restore() (positions []int64, err error) {
	stored, err := os.ReadFile(filepath.Join(c.Dir, "checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(c.tracker.Restore(nil, nil, nil), c.checkpoint())
	}
	if err == nil {
		err = json.Unmarshal(stored, &c.state)
	}
	if err == nil {
		err = c.tracker.Restore(c.state.Tracker, slices.Sorted(maps.Values(c.state.InFlight)), nil)
	}
	if err != nil {
		return nil, err
	}
	for position := int64(1); position <= c.state.Position; position++ {
		if number, ok := c.state.InFlight[position]; ok {
			c.inFlight[position] = c.tracker.Restored(context.Background(), position, number)
			positions = append(positions, position)
		}
	}
	return positions, nil
}

// checkpoint stores one. The elements in flight, their numbers and the tracker's state are of the same moment.
func (c *client) checkpoint() error {
	c.mu.Lock()
	c.state.Checkpoint++
	c.state.InFlight = map[int64]int64{}
	for position, ctx := range c.inFlight {
		c.state.InFlight[position] = c.tracker.Number(ctx)
	}
	c.state.Tracker = c.tracker.Snapshot(c.state.Checkpoint)
	number := c.state.Checkpoint
	stored, err := json.Marshal(c.state)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "new"), stored, 0o600); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(c.Dir, "new"), filepath.Join(c.Dir, "checkpoint")); err != nil {
		return err
	}
	c.tracker.Completed(number)
	return nil
}

// read reads the stream to its end.
func (c *client) read() error {
	for limit := int64(0); limit == 0 || c.state.Position < limit; {
		if limit == 0 && c.state.Position%50 == 0 {
			var err error
			if limit, err = c.limit(); err != nil {
				return err
			}
		}
		for !c.tracker.TryAdmit() {
			room := make(chan struct{})
			c.tracker.Notify(func() { close(room) })
			<-room
		}
		c.mu.Lock()
		c.state.Position++
		position := c.state.Position
		c.inFlight[position] = c.tracker.Accepted(context.Background(), position, false)
		c.mu.Unlock()
		c.begin(position)
	}
	return nil
}

// begin calls the service for an element, when there is a permit.
func (c *client) begin(position int64) {
	c.mu.Lock()
	ctx := c.inFlight[position]
	c.mu.Unlock()
	c.permits <- struct{}{}
	c.slots.Go(func() {
		defer func() { <-c.permits }()
		for attempt := 1; !c.attempt(c.tracker.AttemptStarted(ctx, attempt), position); attempt++ {
			time.Sleep(rand.N(pause))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tracker.Ended(ctx, asyncop.Ending{})
		delete(c.inFlight, position)
	})
}

// attempt makes the requests for an element, and reports whether all were answered.
func (c *client) attempt(ctx context.Context, position int64) bool {
	for _, step := range steps {
		if !c.post(exactlyonce.WithStep(ctx, step), position) {
			return false
		}
	}
	return true
}

// post makes one request, and reports whether it was answered.
func (c *client) post(ctx context.Context, position int64) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/accounts/7",
		strings.NewReader(fmt.Sprintln(position, valueAt(position))))
	if err != nil {
		fail(err)
	}
	resp, err := c.http.Do(req)
	if err == nil {
		defer resp.Body.Close() //nolint:errcheck // it was read
		err = httpretry.CheckResponse(resp)
	}
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(resp.Body)
	}
	if err == nil && string(answer) != strconv.FormatInt(position, 10) {
		fail(fmt.Errorf("element %d has the answer %q of another one", position, answer))
	}
	refused, is := errors.AsType[*httpretry.StatusError](err)
	switch {
	case errors.Is(err, exactlyonce.ErrInProgress): // more attempts wait than may
	case is && refused.StatusCode < http.StatusInternalServerError, errors.Is(err, exactlyonce.ErrStale), errors.Is(err, exactlyonce.ErrNoID):
		fail(fmt.Errorf("element %d: %w", position, err))
	}
	return err == nil
}

// limit asks for the length of the stream; 0: not yet.
func (c *client) limit() (limit int64, err error) {
	resp, err := c.http.Get(c.URL + "/limit")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	_, err = fmt.Fscan(resp.Body, &limit)
	return limit, err
}
