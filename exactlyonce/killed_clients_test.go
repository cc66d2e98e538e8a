package exactlyonce_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/predicates/httpretry"
)

// Environment variables of this test.
const (
	killsEnv  = "WEIR_KILLS"              // number of kills of the client; the default is a few
	clientEnv = "WEIR_EXACTLYONCE_CLIENT" // set in the client's process: clientSettings in JSON
)

// The stream has one number per position.
func valueAt(position int64) int64 { return position%7 + 1 }

// steps are the requests for each element.
var steps = [...]string{"debit", "credit"}

// A client that reads a stream and posts each element twice is killed repeatedly, while
// 30 % of its requests are lost, doubled, delayed, refused or not answered. The service
// counts each element once (X1).
func TestKilledClients(t *testing.T) { killClients(t, "TestCountingClient", t.TempDir()) }

// The same with a client that is a pipeline with checkpoints: source, operator with a
// tracker, sink. Its output also has each element once.
func TestKilledPipelines(t *testing.T) {
	dir := t.TempDir()
	limit := killClients(t, "TestCountingPipeline", dir)
	output, err := os.ReadFile(filepath.Join(dir, "output"))
	require.NoError(t, err)
	lines := strings.Fields(string(output))
	slices.Sort(lines)
	assert.EqualValues(t, limit, len(lines))
	assert.EqualValues(t, limit, len(slices.Compact(lines)))
}

// killClients kills processes that run a test, the client, and returns the length of the
// stream processed by the last one.
func killClients(t *testing.T, client, dir string) (limit int64) {
	kills := 3
	if s := os.Getenv(killsEnv); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		kills = n
	}
	service := newCounters()
	defer func() { require.NoError(t, service.results.Close(t.Context())) }()
	server := httptest.NewServer(service)
	defer server.Close()
	network := newNetwork(t, server)
	defer network.close()

	settings, err := json.Marshal(clientSettings{URL: network.server.URL, Dir: dir, Limit: server.URL + "/limit"})
	require.NoError(t, err)
	run := func() *process {
		p := &process{Cmd: exec.Command(os.Args[0], "-test.run=^"+client+"$", "-test.count=1",
			"-test.timeout=10m"), // so that it ends even without this process
			ended: make(chan struct{})}
		p.Env = append(os.Environ(), clientEnv+"="+string(settings))
		p.Stdout, p.Stderr = &p.output, &p.output
		before := service.total()
		require.NoError(t, p.Start())
		go func() { p.err = p.Wait(); close(p.ended) }()
		t.Cleanup(func() { _ = p.Process.Kill(); <-p.ended })
		require.Eventually(t, func() bool { return service.total() > before+10 || p.hasEnded() }, 2*time.Minute, time.Millisecond)
		return p
	}
	for range kills {
		p := run()
		time.Sleep(rand.N(60 * time.Millisecond)) // at a random point
		require.False(t, p.hasEnded(), "%v", &p.output)
		require.NoError(t, p.Process.Kill())
		<-p.ended
	}
	last := run()
	service.end()
	<-last.ended
	require.NoError(t, last.err, "%v", &last.output)
	limit = service.lengthFor(0)

	var sum int64
	for position := int64(1); position <= limit; position++ {
		sum += valueAt(position)
	}
	service.mu.Lock()
	defer service.mu.Unlock()
	for _, step := range steps {
		assert.Equal(t, sum, service.sums[step], step)
		assert.EqualValues(t, limit, len(service.counts[step]), step)
		for position, n := range service.counts[step] {
			assert.Equal(t, 1, n, "%s of element %d", step, position)
		}
	}
	t.Logf("%d elements, %d kills, %d requests: %v; %d executed, at the service: %+v", limit, kills, network.requests, network.faults,
		len(steps)*int(limit), service.results.Stats())
	return limit
}

type process struct {
	*exec.Cmd
	output bytes.Buffer  // read after ended
	ended  chan struct{} // closed after Wait
	err    error         // result of Wait; read after ended
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// counters is the service. It adds up the values by step.
type counters struct {
	results *server.Results
	tracked http.Handler

	mu     sync.Mutex
	sums   map[string]int64
	counts map[string]map[int64]int
	limit  int64 // length of the stream; 0 while it has not ended
	top    int64
	failed int
}

func newCounters() *counters {
	c := &counters{sums: map[string]int64{}, counts: map[string]map[int64]int{}}
	for _, step := range steps {
		c.counts[step] = map[int64]int{}
	}
	c.results = server.NewResults(server.Config{})
	c.tracked = c.results.Handler(http.HandlerFunc(c.add), server.HandlerConfig{Scope: anyone, Required: true})
	return c
}

// total returns the number of additions.
func (c *counters) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, counts := range c.counts {
		n += len(counts)
	}
	return n
}

// end ends the stream shortly after the executed requests, or at the client's position.
func (c *counters) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = c.top + 150
}

// lengthFor returns the length of the stream for a client that has read up to a position,
// or 0 while the stream has not ended.
func (c *counters) lengthFor(position int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit > 0 {
		c.limit = max(c.limit, position)
	}
	return c.limit
}

func (c *counters) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/limit" {
		position, _ := strconv.ParseInt(r.URL.RawQuery, 10, 64)
		fmt.Fprint(w, c.lengthFor(position))
		return
	}
	c.tracked.ServeHTTP(w, r)
}

// add is the handler inside the tracking. It takes some time and sometimes fails without
// an effect.
func (c *counters) add(w http.ResponseWriter, r *http.Request) {
	var position, value int64
	_, err := fmt.Fscan(r.Body, &position, &value)
	req, ok := exactlyonce.RequestFromContext(r.Context())
	if err != nil || !ok {
		http.Error(w, fmt.Sprint("no tracked request: ", err), http.StatusBadRequest)
		return
	}
	time.Sleep(rand.N(3 * time.Millisecond))
	if rand.IntN(20) == 0 {
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sums[req.Step] += value
	c.counts[req.Step][position]++
	c.top = max(c.top, position)
	fmt.Fprint(w, position)
}

// network connects clients and service. It loses, doubles and delays requests and
// answers.
type network struct {
	t       *testing.T
	to      *http.Client
	target  string
	server  *httptest.Server
	pending sync.WaitGroup // delayed duplicates

	mu       sync.Mutex
	requests int
	faults   map[string]int
}

func newNetwork(t *testing.T, to *httptest.Server) *network {
	n := &network{t: t, to: to.Client(), target: to.URL, faults: map[string]int{}}
	n.server = httptest.NewServer(n)
	return n
}

func (n *network) close() {
	n.server.Close()
	n.pending.Wait()
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client was killed
	}
	fault := [...]string{
		"request lost", "answer lost", "answer lost", "doubled", "late double", "delayed", "refused",
	}[rand.IntN(7)]
	if rand.IntN(10) >= 3 {
		fault = "none"
	}
	n.mu.Lock()
	n.requests++
	n.faults[fault]++
	n.mu.Unlock()
	later := func(most time.Duration) { // a copy without a waiting caller
		n.pending.Go(func() {
			time.Sleep(rand.N(most))
			status, _, err := n.forward(context.Background(), r, body)
			if err != nil || status == http.StatusBadRequest {
				n.t.Errorf("a late double: status %d, %v", status, err)
			}
		})
	}
	switch fault {
	case "request lost":
		panic(http.ErrAbortHandler)
	case "refused":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case "doubled":
		later(time.Millisecond)
	case "late double":
		later(100 * time.Millisecond)
	case "delayed":
		time.Sleep(rand.N(50 * time.Millisecond))
	}
	status, answer, err := n.forward(r.Context(), r, body)
	if fault == "answer lost" || err != nil {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

func (n *network) forward(ctx context.Context, r *http.Request, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, n.target+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = r.Header.Clone()
	resp, err := n.to.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// ---- The client's process

type clientSettings struct{ URL, Dir, Limit string }

// TestCountingClient is the client of TestKilledClients, run as a separate process.
func TestCountingClient(t *testing.T) {
	c := newCountingClient(t, "TestKilledClients")
	c.tracker = caller.NewTracker(caller.Config{Window: 400})
	c.run()
}

// newCountingClient returns a client of the service started by a test. It skips t without
// such a service.
func newCountingClient(t *testing.T, runsAsProcessOf string) *countingClient {
	s := os.Getenv(clientEnv)
	if s == "" {
		t.Skip("runs as a process of " + runsAsProcessOf)
	}
	c := &countingClient{t: t}
	require.NoError(t, json.Unmarshal([]byte(s), &c.clientSettings))
	own := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(own.CloseIdleConnections)
	c.client = &http.Client{Transport: caller.Transport(own, c.URL+"/accounts/"), Timeout: time.Minute}
	return c
}

// countingClient reads a stream, calls the service for each element, and takes
// checkpoints.
type countingClient struct {
	clientSettings
	t       *testing.T
	tracker *caller.Tracker
	client  *http.Client
	slots   sync.WaitGroup

	mu       sync.Mutex
	state    clientState
	inFlight map[int64]context.Context // by position
}

// clientState is a checkpoint: the state that an operator and its source would store.
type clientState struct {
	Checkpoint uint64
	Tracker    []byte
	Position   int64           // of the source
	InFlight   map[int64]int64 // positions with their sequence numbers
}

func (c *countingClient) run() {
	c.inFlight = map[int64]context.Context{}
	stored, err := os.ReadFile(filepath.Join(c.Dir, "checkpoint"))
	if err == nil {
		require.NoError(c.t, json.Unmarshal(stored, &c.state))
		numbers := slices.Sorted(maps.Values(c.state.InFlight))
		require.NoError(c.t, c.tracker.Restore(c.state.Tracker, numbers, nil))
		for position := int64(1); position <= c.state.Position; position++ { // in input order
			if number, ok := c.state.InFlight[position]; ok {
				c.inFlight[position] = c.tracker.Restored(context.Background(), position, number)
			}
		}
		for position := int64(1); position <= c.state.Position; position++ {
			if _, ok := c.state.InFlight[position]; ok {
				c.begin(position)
			}
		}
	} else {
		require.ErrorIs(c.t, err, os.ErrNotExist)
		require.NoError(c.t, c.tracker.Restore(nil, nil, nil))
		c.checkpoint()
	}
	ended := make(chan struct{})
	checkpoints := make(chan struct{})
	go func() {
		defer close(checkpoints)
		for {
			select {
			case <-ended:
				c.checkpoint()
				return
			case <-time.After(30 * time.Millisecond):
				c.checkpoint()
			}
		}
	}()
	for limit := int64(0); limit == 0 || c.state.Position < limit; {
		if limit == 0 && c.state.Position%50 == 0 {
			limit = c.limit(c.state.Position)
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
	c.slots.Wait()
	close(ended)
	<-checkpoints
	require.Empty(c.t, c.inFlight)
}

var permits = make(chan struct{}, 16)

// begin calls the service for an element once there is a permit.
func (c *countingClient) begin(position int64) {
	c.mu.Lock()
	ctx := c.inFlight[position]
	c.mu.Unlock()
	permits <- struct{}{}
	c.slots.Go(func() {
		defer func() { <-permits }()
		for attempt, done := 1, 0; done < len(steps); attempt++ {
			started := c.tracker.AttemptStarted(ctx, attempt)
			for done = 0; done < len(steps) && c.post(caller.WithStep(started, steps[done]), position); done++ {
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tracker.Ended(ctx, observe.Ending{})
		delete(c.inFlight, position)
	})
}

// post makes one request, and reports whether it was answered.
func (c *countingClient) post(ctx context.Context, position int64) (ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/accounts/7",
		strings.NewReader(fmt.Sprintln(position, valueAt(position))))
	if !assert.NoError(c.t, err) {
		return false
	}
	resp, err := c.client.Do(req)
	if err == nil {
		defer resp.Body.Close()
		err = httpretry.CheckResponse(resp)
	}
	if err == nil {
		var answer []byte
		answer, err = io.ReadAll(resp.Body)
		if err == nil && string(answer) != strconv.FormatInt(position, 10) {
			panic(fmt.Sprintf("element %d has the answer %q of another one", position, answer))
		}
	}
	if status, is := errors.AsType[*httpretry.StatusError](err); is && status.StatusCode < 500 || errors.Is(err, exactlyonce.ErrStale) {
		panic(fmt.Sprintf("element %d: %v", position, err)) // must not happen
	}
	return err == nil
}

// checkpoint stores a checkpoint. The elements in flight, their numbers and the tracker's
// state are consistent.
func (c *countingClient) checkpoint() {
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
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Dir, "new"), stored, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(c.Dir, "new"), filepath.Join(c.Dir, "checkpoint"))
	}
	if !assert.NoError(c.t, err) {
		return
	}
	c.tracker.Completed(number)
}

// limit requests the length of the stream for the given position. It returns 0 while the
// length is unknown.
func (c *countingClient) limit(position int64) int64 {
	resp, err := c.client.Get(fmt.Sprintf("%s?%d", c.Limit, position))
	require.NoError(c.t, err)
	defer resp.Body.Close()
	var limit int64
	_, err = fmt.Fscan(resp.Body, &limit)
	require.NoError(c.t, err)
	return limit
}
