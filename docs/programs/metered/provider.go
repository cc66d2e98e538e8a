package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// startProvider starts a language model of this process, writes prompts.txt if it is
// missing, and returns the model's address. It throttles every 50th call, is overloaded
// at every 90th, and refuses the prompt 13.
func startProvider() string {
	if _, err := os.Stat("prompts.txt"); err != nil {
		var prompts strings.Builder
		for i := range 300 {
			fmt.Fprintf(&prompts, "Summarise document %d.\n", i)
		}
		must(0, os.WriteFile("prompts.txt", []byte(prompts.String()), 0o600))
	}
	var calls atomic.Int64
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prompt := string(must(io.ReadAll(r.Body)))
		time.Sleep(5 * time.Millisecond)
		n := calls.Add(1)
		switch {
		case prompt == "Summarise document 13.":
			http.Error(w, "against the rules", http.StatusUnprocessableEntity)
		case n%50 == 0:
			w.Header().Set("Retry-After-Ms", "20")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		case n%90 == 0:
			http.Error(w, "overloaded", 529)
		default:
			must(0, json.NewEncoder(w).Encode(map[string]any{"Text": "A summary.", "Tokens": 20}))
		}
	})).URL
}
