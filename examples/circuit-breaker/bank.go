package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// bank books payments, over HTTP. For the time of its breakdown it hangs up
// instead of answering; half of the payments it has booked all the same.
type bank struct {
	*httptest.Server
	breakdown func() bool

	mu       sync.Mutex
	received map[string]int // guarded by mu: by payment
	booked   map[string]int // guarded by mu: by payment
	failed   int            // guarded by mu: payments that were not answered
}

func newBank(breakdown func() bool) *bank {
	b := &bank{breakdown: breakdown, received: map[string]int{}, booked: map[string]int{}}
	b.Server = httptest.NewServer(http.HandlerFunc(b.pay))
	return b
}

func (b *bank) pay(w http.ResponseWriter, r *http.Request) {
	time.Sleep(2 * time.Millisecond)
	id := r.FormValue("id")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received[id]++
	if b.breakdown() {
		if b.failed++; b.failed%2 == 0 {
			b.booked[id]++
		}
		panic(http.ErrAbortHandler) // hangs up
	}
	b.booked[id]++
	w.WriteHeader(http.StatusNoContent)
}
