package console

import (
	"net/http"

	"github.com/weirflow/weir/exactlyonce/keys"
)

const (
	shownKeys = 50
	mostKeys  = 1000 // that are counted
)

type keysData struct {
	Filter keys.Filter
	List   []keys.Info // the oldest first
	Count  int
	More   bool   // than are counted
	Error  string // why they cannot be read
}

// Filtered is for templates.
func (d keysData) Filtered() bool { return d.Filter != keys.Filter{} }

// keys shows the states of requests with idempotency keys, never requests or answers.
func (s *server) keys(r *http.Request) (view, error) {
	q := r.URL.Query()
	d := keysData{Filter: keys.Filter{User: q.Get("user"), Key: q.Get("key"), Operation: q.Get("operation"), Finished: q.Get("finished") != ""}}
	for info, err := range s.Keys.List(r.Context(), d.Filter) {
		if err != nil && r.Context().Err() != nil {
			return view{}, r.Context().Err()
		}
		if err != nil {
			d.Error = failure(500, err)
			break
		}
		d.More = d.Count == mostKeys
		if d.More {
			break
		}
		if d.Count++; d.Count <= shownKeys {
			d.List = append(d.List, info)
		}
	}
	return view{Name: "keys", Title: "Requests with keys", Data: d}, nil
}
