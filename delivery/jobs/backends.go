package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/unknown"
)

// Backend is the state of a service as reported by a worker that calls it: see package
// backend.
type Backend struct {
	Name    string    `json:"name"`
	State   string    `json:"state"`         // up, down, probing, ramping, held
	Why     string    `json:"why,omitempty"` // reason for a state other than up
	Since   time.Time `json:"since"`         // start of State, or of the outage if down or probing, by the worker's clock
	Until   time.Time `json:"until,omitzero"`
	Limit   int       `json:"limit"`           // calls of the process at a time; -1 means no limit
	Fleet   int       `json:"fleet,omitempty"` // calls at a time of all processes that share one state (backend.Shared); 0 if not shared
	InUse   int       `json:"inUse"`
	Waiting int       `json:"waiting"` // operators

	// States are up to 32 states of the backend, the oldest first and the current one
	// last. Down and probing count as one state. It is empty if the worker runs an
	// earlier version.
	States []BackendState `json:"states,omitempty"`
}

// BackendState is a state of a backend, up to the next one.
type BackendState struct {
	State string    `json:"state"`
	Since time.Time `json:"since"` // by the worker's clock
}

// BackendOrder is an order of people to the backends with a name, in all workers, until
// the next order.
type BackendOrder struct {
	Backend string    `json:"backend"`
	Event   string    `json:"event"`           // the last event: hold, resume, limit
	Held    string    `json:"held,omitempty"`  // reason and author, if calls must not start
	Limit   *int      `json:"limit,omitempty"` // calls at a time in each process, or in all that share a limit; nil means the program's limit
	By      string    `json:"by"`              // author of the event
	Why     string    `json:"why"`
	At      time.Time `json:"at"` // by the engine's clock

	version int64
	later   map[string]string // members of a later version
}

// backendKind is the kind of the records with orders to backends. They are announced.
const backendKind = "backend"

var orderMembers = unknown.Kind{Known: []string{"backend", "event", "held", "limit", "by", "why", "at"}}

// Records keep the names that earlier versions know, because workers of two versions run
// side by side during a rollout (law W4). Both names are read.
const (
	resumeEvent       = "resume"
	storedResumeEvent = "open"
)

// storedStates has the stored names of states that differ from the current ones.
var storedStates = map[string]string{"up": "open", "down": "closed"}

func (o BackendOrder) stored() BackendOrder {
	if o.Event == resumeEvent {
		o.Event = storedResumeEvent
	}
	return o
}

// eventOf returns an order's event by its stored name.
func eventOf(stored string) string {
	if stored == storedResumeEvent {
		return resumeEvent
	}
	return stored
}

func storedBackends(list []Backend) []Backend {
	list = slices.Clone(list)
	for i := range list {
		if name, ok := storedStates[list[i].State]; ok {
			list[i].State = name
		}
	}
	return list
}

// readBackends replaces stored names of states by the current ones.
func readBackends(list []Backend) {
	for i := range list {
		for name, stored := range storedStates {
			if list[i].State == stored {
				list[i].State = name
			}
		}
	}
}

// HoldBackend keeps calls of the backends with this name from starting, in all workers of
// the engine, including later ones, until [Jobs.ResumeBackend]. Running calls continue.
// Workers on PostgreSQL and in memory obey at once, and others within about a second.
func (j *Jobs) HoldBackend(ctx context.Context, name, by, why string) (BackendOrder, error) {
	return j.orderBackend(ctx, name, "hold", by, why, func(o *BackendOrder) { o.Held = why + " (" + by + ")" })
}

// ResumeBackend ends a hold. The backends try their service, and their load grows back,
// even if they went down for another reason.
func (j *Jobs) ResumeBackend(ctx context.Context, name, by, why string) (BackendOrder, error) {
	return j.orderBackend(ctx, name, resumeEvent, by, why, func(o *BackendOrder) { o.Held = "" })
}

// LimitBackend lets n calls run at a time in each process, or in all processes together
// if they share a limit (backend.Shared). A negative n restores the limit of the program.
// An adaptive limit adapts from there, within its bounds.
func (j *Jobs) LimitBackend(ctx context.Context, name string, n int, by, why string) (BackendOrder, error) {
	return j.orderBackend(ctx, name, "limit", by, why, func(o *BackendOrder) {
		o.Limit = nil
		if n >= 0 {
			o.Limit = &n
		}
	})
}

// orderBackend changes the order for a backend, and appends a line to the log, in one
// transaction (law J2).
func (j *Jobs) orderBackend(ctx context.Context, name, event, by, why string, change func(o *BackendOrder)) (o BackendOrder, err error) {
	switch {
	case by == "" || why == "":
		return o, fmt.Errorf("jobs: who wants to %s the backend, and why?", event)
	case name == "" || !utf8.ValidString(name) || !utf8.ValidString(by) || !utf8.ValidString(why):
		return o, fmt.Errorf("jobs: backend %q, by %q, why %q: want a name, and UTF-8", name, by, why)
	}
	err = j.update(ctx, func(ctx context.Context, tx store.Tx) error {
		list, err := orders(ctx, tx)
		if err != nil {
			return err
		}
		o = BackendOrder{Backend: name}
		for _, other := range list {
			if other.Backend == name {
				o = other
			}
		}
		if o.version > 0 && o.At.IsZero() { // it may be held, so it is not replaced
			return fmt.Errorf("jobs: the order for backend %q cannot be read: it was ordered by a later version of weir, or is damaged", name)
		}
		before := o.At
		o.Event = event
		o.By = by
		o.Why = why
		o.At = tx.Now().UTC()
		if !o.At.After(before) { // workers look for newer ones
			o.At = before.Add(time.Microsecond)
		}
		change(&o)
		text, err := json.Marshal(o.stored())
		if err != nil {
			return fmt.Errorf("jobs: backend %q: %w", name, err)
		}
		text = orderMembers.Append(text, o.later)
		tx.Announce()
		if err := tx.Write(ctx, store.Record{Kind: backendKind, Name: name, Version: o.version, Value: string(text)}); err != nil {
			return err
		}
		return appendLine(ctx, tx, Line{At: o.At, Event: event, By: by, Why: why, Backend: &o})
	})
	return o, err
}

// BackendOrders returns the orders of people to backends. An order that cannot be read
// has only a name.
func (j *Jobs) BackendOrders(ctx context.Context) ([]BackendOrder, error) {
	return orders(ctx, j.engine)
}

func orders(ctx context.Context, from reader) (list []BackendOrder, err error) {
	err = each(ctx, from, backendKind, func(r store.Record) error {
		var o BackendOrder
		later, err := orderMembers.Unmarshal([]byte(r.Value), &o)
		if err != nil { // the other orders count all the same
			o = BackendOrder{}
		}
		o.Event = eventOf(o.Event)
		o.Backend = r.Name
		o.version = r.Version
		o.later = later
		list = append(list, o)
		return nil
	})
	return list, err
}
