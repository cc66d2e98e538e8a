package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	shownByKey    = 100             // keys of a page
	firstByKey    = 2 * time.Second // wait of a page for a queue's first counts
	longestFilter = 1000            // bytes
)

// byKeyData is the page of the keys of a queue.
type byKeyData struct {
	Queue, Dead string
	Contains    string
	Rows        []jobs.KeyState // as of At
	More        bool            // more keys than are shown
	CanHold     bool            // people can hold the keys of the queue
	Held        []jobs.KeyOrder // now
	Down        []jobs.KeyDown  // now
	Chosen      *jobs.KeyOrder  // the form's key: not held if it has no author; nil without a form
	At          time.Time
	Failed      string // why the messages could not be counted, or ""
}

type keyFilter struct{ queue, contains string }

// byKey shows a queue's messages, with its layers and dead letters, by key.
func (s *server) byKey(r *http.Request) (view, error) {
	q := r.URL.Query()
	d := byKeyData{Queue: queueOf(q), Contains: q.Get("contains")}
	switch {
	case d.Queue == "":
		return view{}, missing("Which queue? The address names none.")
	case len(d.Contains) > longestFilter:
		return view{}, wrong("The filter has %d bytes: at most %d are allowed.", len(d.Contains), longestFilter)
	}
	d.Queue, _ = roleOf(d.Queue, false)
	d.Dead = storearg.DeadOf(d.Queue)
	_, counts := s.engine.(store.KeyCounter)
	if !counts {
		return view{}, wrong("This engine does not count by key: SQLite, PostgreSQL and memory do. Filter the messages of the queue by one key instead.")
	}
	err := s.readHeld(r, &d)
	if err != nil {
		return view{}, err
	}
	err = s.readDown(r.Context(), &d)
	if err != nil {
		return view{}, err
	}
	rows, at, err := s.keysOf(r.Context(), d.Queue, d.Contains)
	if err != nil {
		d.Failed = failure(300, err)
	}
	d.At, d.More = at, len(rows) > shownByKey
	d.Rows = rows[:min(len(rows), shownByKey)]
	return view{Name: "bykey", Title: "Keys of " + cut(100, d.Queue), Data: &d}, nil
}

func (d *byKeyData) HeldBy(key string) *jobs.KeyOrder {
	for i := range d.Held {
		if d.Held[i].Key == key {
			return &d.Held[i]
		}
	}
	return nil
}

func (d *byKeyData) DownOf(key string) *jobs.KeyDown {
	for i := range d.Down {
		if d.Down[i].Key == key {
			return &d.Down[i]
		}
	}
	return nil
}

// MoreDown returns how many keys are down beyond ShownDown.
func (d *byKeyData) MoreDown() int { return len(d.Down) - len(d.ShownDown()) }

// ShownDown returns the first keys that are down.
func (d *byKeyData) ShownDown() []jobs.KeyDown { return d.Down[:min(len(d.Down), shownByKey)] }

// readDown reads which keys workers report to be down.
func (s *server) readDown(ctx context.Context, d *byKeyData) error {
	workers, err := s.jobs.Workers(ctx)
	if err != nil {
		return err
	}
	for _, k := range jobs.KeysDown(workers, s.Clock.Now()) {
		if k.Queue == d.Queue {
			d.Down = append(d.Down, k)
		}
	}
	return nil
}

// readHeld reads the held keys, and the key in the address.
func (s *server) readHeld(r *http.Request, d *byKeyData) error {
	_, canSkip := s.engine.(store.ByKey)
	d.CanHold = s.keeps && canSkip
	if !d.CanHold {
		return nil
	}
	all, err := s.jobs.HeldKeys(r.Context())
	if err != nil {
		return err
	}
	for _, o := range all {
		if o.Queue == d.Queue {
			d.Held = append(d.Held, o)
		}
	}
	key := r.URL.Query().Get("key")
	if key == "" {
		return nil
	}
	d.Chosen = d.HeldBy(key)
	if d.Chosen == nil {
		d.Chosen = &jobs.KeyOrder{Queue: d.Queue, Key: key}
	}
	return nil
}

// holdKey holds or resumes the key in the address.
func (s *server) holdKey(r *http.Request) (string, error) {
	q := r.URL.Query()
	why := reason(r.PostForm)
	if why == "" {
		return "", wrong("%s", noWhy)
	}
	order, ok := map[string]func(ctx context.Context, queue, key, by, why string) (jobs.KeyOrder, error){
		"hold": s.jobs.HoldKey, "resume": s.jobs.ResumeKey,
	}[r.PostForm.Get("do")]
	if !ok {
		return "", missing("There is no such action.")
	}
	o, err := order(r.Context(), q.Get("queue"), q.Get("key"), personOf(r).who, why)
	if err != nil {
		return "", mine(r.Context(), err)
	}
	s.noteAction()
	return "/bykey?" + url.Values{"queue": {o.Queue}}.Encode(), nil
}

// keysOf returns a queue's counts by key, and when they were counted: zero if they are
// still being counted.
func (s *server) keysOf(ctx context.Context, queue, contains string) ([]jobs.KeyState, time.Time, error) {
	c := s.keyTable(keyFilter{queue, contains})
	longest := patience
	_, at, _ := c.peek()
	if at.IsZero() {
		longest = firstByKey
	}
	return c.get(ctx, c.life, s.Clock, longest, func(ctx context.Context) ([]jobs.KeyState, error) { return s.countKeys(ctx, queue, contains) })
}

// keyTable is the counts by key of a queue and filter.
type keyTable struct {
	cached[[]jobs.KeyState]

	life context.Context //nolint:containedctx // of its counts: it ends when the table is dropped
	drop context.CancelFunc
}

// keyTable returns the table of a queue and filter. A new table may replace another,
// whose count ends.
func (s *server) keyTable(key keyFilter) *keyTable {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byKeys[key]
	if t != nil {
		return t
	}
	for other, dropped := range s.byKeys {
		if len(s.byKeys) < manyKinds {
			break
		}
		dropped.drop()
		delete(s.byKeys, other) // an arbitrary table
	}
	t = &keyTable{}
	t.life, t.drop = context.WithCancel(s.ctx)
	t.reserve = s.pace.reserveKeys
	s.byKeys[key] = t
	return t
}

func (s *server) countKeys(ctx context.Context, queue, contains string) ([]jobs.KeyState, error) {
	f := jobs.KeyFilter{Contains: contains, Max: shownByKey + 1}
	if s.keeps {
		return s.jobs.KeyStates(ctx, queue, f)
	}
	counts, err := jobs.Keys(ctx, s.engine, queue, f)
	list := make([]jobs.KeyState, 0, len(counts))
	for _, c := range counts {
		list = append(list, jobs.KeyState{KeyCounts: c})
	}
	return list, err
}

const shownStopped = 3

// keyProblems lists the keys that are held or down. It sums up many keys of a queue.
func (s *server) keyProblems(l *look) (list []problem) {
	held := map[string][]string{} // by queue
	for _, o := range l.held {
		text := fmt.Sprintf("Key %s of %s is held: %s", cut(100, o.Key), cut(100, o.Queue), cut(200, o.Why))
		if o.By != "" { // the order can be read
			text = fmt.Sprintf("Key %s of %s is held, by %s %s ago: %s", cut(100, o.Key), cut(100, o.Queue), cut(60, o.By), age(max(0, l.at.Sub(o.At))), cut(200, o.Why))
		}
		held[o.Queue] = append(held[o.Queue], text)
	}
	down := map[string][]string{}
	for _, k := range l.down {
		state := "down"
		if k.State == "held" {
			state = "held by its program"
		}
		down[k.Queue] = append(down[k.Queue], fmt.Sprintf("Key %s of %s is %s in %d of %s, for %s: %s",
			cut(100, k.Key), cut(100, k.Queue), state, k.In, count(k.Workers, "worker"), age(max(0, l.at.Sub(k.Since))), failure(200, k.Why)))
	}
	list = append(list, s.stoppedProblems(held, "held")...)
	return append(list, s.stoppedProblems(down, "down")...)
}

// stoppedProblems lists the problems of keys. texts are by queue, one for each key.
func (s *server) stoppedProblems(texts map[string][]string, state string) (list []problem) {
	for _, queue := range slices.Sorted(maps.Keys(texts)) {
		path, link := s.link("/bykey", "queue", queue), "the keys"
		_, counts := s.engine.(store.KeyCounter)
		if !counts {
			path, link = s.link("/queue", "queue", queue), "the queue"
		}
		all := texts[queue]
		for _, text := range all[:min(len(all), shownStopped)] {
			list = append(list, problem{1, text, path, link})
		}
		if len(all) > shownStopped {
			more := count(len(all)-shownStopped, "more key is", "more keys are")
			list = append(list, problem{1, fmt.Sprintf("Of %s, %s %s.", cut(100, queue), more, state), path, link})
		}
	}
	return list
}
