package killtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

// network connects clients and servers. Each request goes to a random running server; 30
// % are disturbed.
type network struct {
	server  *httptest.Server
	client  *http.Client
	pending sync.WaitGroup // delayed duplicates

	mu      sync.Mutex
	targets []string // URLs; "" while a server is down
	read    int64    // highest position that a client may have read
	length  int64    // of the stream; 0 while unknown
	errs    []error

	// Counts for the report.
	requests, answers int
	faults            map[string]int
	inDoubt           map[string]bool // unanswered requests, by id without the attempt
	done              map[string]bool
	doubts            int // requests that were ever in doubt
	happened          int // requests in doubt that had taken effect before their repetition
	staleDoubles      int // duplicates that came too late
}

func newNetwork(servers int) *network {
	n := &network{
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}, targets: make([]string, servers),
		faults: map[string]int{}, inDoubt: map[string]bool{}, done: map[string]bool{},
	}
	n.server = httptest.NewServer(n)
	return n
}

func (n *network) close() {
	n.server.Close()
	n.pending.Wait()
	n.client.CloseIdleConnections()
}

func (n *network) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("%d requests, %d answered; trouble: %v; %d requests were in doubt, %d of them had taken effect; %d doubles came too late",
		n.requests, n.answers, n.faults, n.doubts, n.happened, n.staleDoubles)
}

func (n *network) setTarget(i int, url string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.targets[i] = url
}

func (n *network) progress() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answers
}

// end sets the stream's length to a position that no client has read yet.
func (n *network) end() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.length = n.read + ahead
	return n.length
}

// asked answers a client that has read up to a position and asks for the stream's length.
func (n *network) asked(w http.ResponseWriter, req *http.Request) {
	position, err := strconv.ParseInt(req.FormValue("position"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.read = max(n.read, position+ahead)
	_, _ = fmt.Fprint(w, n.length)
}

func (n *network) pick() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	from := rand.IntN(len(n.targets))
	for i := range n.targets {
		if target := n.targets[(from+i)%len(n.targets)]; target != "" {
			return target
		}
	}
	return ""
}

func (n *network) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/length" {
		n.asked(w, req)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the client was killed
	}
	fault := [...]string{
		"request lost", "answer lost", "answer lost", "doubled", "late double", "delayed", "refused",
	}[rand.IntN(7)]
	if rand.IntN(10) >= 3 {
		fault = "none"
	}
	target := n.pick()
	if target == "" {
		fault = "no server"
	}
	id, err := n.note(req, fault)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch fault {
	case "request lost":
		n.doubt(id)
		panic(http.ErrAbortHandler)
	case "refused", "no server":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case "doubled":
		n.double(req, body, time.Millisecond)
	case "late double":
		n.double(req, body, 100*time.Millisecond)
	case "delayed":
		time.Sleep(rand.N(50 * time.Millisecond))
	}
	resp, answer, err := n.forward(req.Context(), target, req, body)
	if fault == "answer lost" || err != nil { // the latter if the server was killed
		n.doubt(id)
		panic(http.ErrAbortHandler)
	}
	if resp.StatusCode == http.StatusOK {
		n.answered(id, resp.Header.Get(oncewire.Result) == oncewire.Replayed)
	}
	if result := resp.Header.Get(oncewire.Result); result != "" {
		w.Header().Set(oncewire.Result, result)
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer)
}

// note counts a request and returns its id without the attempt.
func (n *network) note(req *http.Request, fault string) (id string, err error) {
	var parsed exactlyonce.ID
	if err := parsed.UnmarshalText([]byte(req.Header.Get(exactlyonce.Header))); err != nil {
		return "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests++
	n.faults[fault]++
	return fmt.Sprint(parsed.Client, " ", parsed.Sequence, " ", parsed.Step), nil
}

func (n *network) doubt(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.done[id] && !n.inDoubt[id] { // ignore requests of a client that was killed meanwhile
		n.inDoubt[id] = true
		n.doubts++
	}
}

func (n *network) answered(id string, before bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers++
	n.done[id] = true
	if n.inDoubt[id] && before {
		n.happened++
	}
	delete(n.inDoubt, id)
}

// double repeats a request after a while. The answer is only checked.
func (n *network) double(req *http.Request, body []byte, most time.Duration) {
	n.pending.Go(func() {
		time.Sleep(rand.N(most))
		target := n.pick()
		if target == "" {
			return
		}
		resp, answer, err := n.forward(context.Background(), target, req, body)
		if err != nil {
			return // the server was killed
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		switch {
		case resp.StatusCode == http.StatusGone:
			n.staleDoubles++
		case resp.StatusCode == http.StatusOK:
			if position, _, _ := bytes.Cut(body, []byte(" ")); !bytes.Equal(answer, position) {
				n.errs = append(n.errs, fmt.Errorf("a double of element %s was answered %q", position, answer))
			}
		case resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusConflict:
			n.errs = append(n.errs, errors.New("a double was answered with "+strconv.Itoa(resp.StatusCode)))
		}
	})
}

func (n *network) forward(ctx context.Context, target string, req *http.Request, body []byte) (*http.Response, []byte, error) {
	out, err := http.NewRequestWithContext(ctx, req.Method, target+req.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	out.Header = req.Header.Clone()
	resp, err := n.client.Do(out)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read
	answer, err := io.ReadAll(resp.Body)
	return resp, answer, err
}
