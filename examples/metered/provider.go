package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

type answer struct {
	Text   string
	Tokens float64
}

// Limits, prices and overloads.
const (
	callLimit     = 600    // per second
	tokenLimit    = 10_000 // per second
	pricePerCall  = 0.0005
	pricePerToken = 0.00002
	latency       = 30 * time.Millisecond
	overloadEach  = 5 * time.Second
	overloadTime  = 300 * time.Millisecond
)

// lines and prompts are the numbers of lines and of distinct lines in prompts.txt.
const (
	lines   = 3000
	prompts = 2636
)

// provider is a language model in this process. It limits calls and tokens (429), is
// overloaded at times, refuses some prompts, and has a price. It is safe for concurrent
// use.
type provider struct {
	url     string
	started time.Time
	calls   *rate.Limiter
	tokens  *rate.Limiter

	mu    sync.Mutex
	count counts // guarded by mu
}

type counts struct {
	calls, answered, throttled, overloaded, refused int
	tokens                                          int
}

// startProvider starts the provider. It also enters the run's directory: the program's
// argument, or weir-metered in the directory for temporary files. It writes a missing
// prompts.txt, and removes the files of a complete run.
func startProvider() *provider {
	dir := filepath.Join(os.TempDir(), "weir-metered")
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	must(0, os.MkdirAll(dir, 0o700))
	must(0, os.Chdir(dir))
	fmt.Println("directory:", dir)
	if rows, _ := countRows(); rows == lines {
		for _, name := range []string{"answers.jsonl", "answers.db", "answers.db-wal", "answers.db-shm", "checkpoints", "prompts.txt"} {
			must(0, os.RemoveAll(name))
		}
	}
	if _, err := os.Stat("prompts.txt"); err != nil {
		var text strings.Builder
		for i := range lines {
			fmt.Fprintf(&text, "Summarise document %d.\n", i%prompts)
		}
		must(0, os.WriteFile("prompts.txt", []byte(text.String()), 0o600))
	}
	p := &provider{
		started: time.Now(),
		calls:   rate.NewLimiter(callLimit, callLimit/20),
		tokens:  rate.NewLimiter(tokenLimit, tokenLimit/20),
	}
	p.url = httptest.NewServer(http.HandlerFunc(p.serve)).URL
	return p
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	prompt := string(must(io.ReadAll(r.Body)))
	used := 10 + int(crc32.ChecksumIEEE([]byte(prompt))%20)
	wait := p.take(used)
	p.mu.Lock()
	p.count.calls++
	p.mu.Unlock()
	switch {
	case time.Since(p.started)%overloadEach > overloadEach-overloadTime:
		p.add(func(c *counts) { c.overloaded++ })
		http.Error(w, "overloaded", 529)
	case wait > 0:
		p.add(func(c *counts) { c.throttled++ })
		w.Header().Set("Retry-After-Ms", strconv.FormatInt(wait.Milliseconds()+1, 10))
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case strings.Contains(prompt, "13."):
		p.add(func(c *counts) { c.refused++ })
		http.Error(w, "against the rules", http.StatusUnprocessableEntity)
	default:
		time.Sleep(latency)
		p.add(func(c *counts) { c.answered, c.tokens = c.answered+1, c.tokens+used })
		must(0, json.NewEncoder(w).Encode(answer{Text: "A summary.", Tokens: float64(used)}))
	}
}

func (p *provider) add(change func(c *counts)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.count)
}

// take takes a call and its tokens from the limits. If that would exceed one, it takes
// neither, and returns the time to wait.
func (p *provider) take(tokens int) time.Duration {
	now := time.Now()
	call, used := p.calls.ReserveN(now, 1), p.tokens.ReserveN(now, tokens)
	wait := max(call.DelayFrom(now), used.DelayFrom(now))
	if wait > 0 {
		call.CancelAt(now)
		used.CancelAt(now)
	}
	return wait
}

// summarize prints this run's use.
func (p *provider) summarize() {
	took := time.Since(p.started)
	p.mu.Lock()
	c := p.count
	p.mu.Unlock()
	rows, failed := countRows()
	overloads := int(took / overloadEach)
	overloaded := time.Duration(overloads) * overloadTime
	share := float64(c.tokens) / (tokenLimit * (took - overloaded).Seconds())
	fmt.Printf("time: %.1f s, of which the provider was overloaded for %.1f s\n", took.Seconds(), overloaded.Seconds())
	fmt.Printf("calls: %d answered, %d throttled (429), %d overloaded (529), %d refused (422)\n", c.answered, c.throttled, c.overloaded, c.refused)
	fmt.Printf("limit: %.0f %% of the tokens that it allowed\n", 100*share)
	fmt.Printf("cost: $%.2f\n", float64(c.answered)*pricePerCall+float64(c.tokens)*pricePerToken)
	fmt.Printf("rows: %d, failed: %d, without a call of their own: %d\n", rows, failed, rows-failed-c.answered)
}

func countRows() (rows, failed int) {
	text, _ := os.ReadFile("answers.jsonl") // missing at the first start
	return bytes.Count(text, []byte("\n")), bytes.Count(text, []byte(`"Error":`))
}
