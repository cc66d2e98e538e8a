package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/internal/guard"
)

// Role is a set of permissions of a person.
type Role int

// The roles.
const (
	Nobody Role = iota // may not even look
	Reader             // may look at everything, but not act
	Actor              // starts jobs and steers backends, too
)

// Config has the settings of [Handler].
type Config struct {
	// Engine is required: a store.Inspector. Unless it is a store.Keeper, jobs and their
	// log live in this process.
	Engine store.Engine
	// Prefix is the path of the handler, such as "/weir"; the default is the root.
	Prefix string
	// Authorize returns the role and the name of a request's sender. An error is answered
	// with the status 403, and logged. An Actor needs a name, for the log of actions. By
	// default every user of this machine is a Reader, and others are refused.
	Authorize func(r *http.Request) (role Role, who string, err error)

	// Keys are the requests with idempotency keys (package exactlyonce/keys); if nil,
	// they have no page. The page shows their states, never requests or answers.
	Keys *keys.Keys
	// Checkpoints are the coordinators of this process's pipelines, by name. On an engine
	// that keeps jobs the handler reports them every 20 s, for the consoles of other
	// processes.
	Checkpoints map[string]*checkpoint.Coordinator

	Clock  clock.Clock  // the default is the machine's
	Logger *slog.Logger // for failures, at warn level; the default is slog.Default()
}

const (
	queryTime = 10 * time.Second // for a page
	atOnce    = 8                // pages that are made at once
	streams   = 64               // live pages at once
	maxForm   = 1 << 20          // bytes of a form
	maxPage   = 4 << 20          // bytes of a page
)

//go:embed static
var static embed.FS

// Handler returns the console of an engine. It runs the jobs that are started in it,
// until ctx ends. It is safe for concurrent use. It returns an error if the engine cannot
// look into its queues, such as Kafka, or if the prefix is not a path.
func Handler(ctx context.Context, c Config) (http.Handler, error) {
	engine, ok := c.Engine.(store.Inspector)
	if !ok {
		return nil, fmt.Errorf("console: a %T cannot look into its queues: it is not a store.Inspector", c.Engine)
	}
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
	if c.Prefix != "" && !strings.HasPrefix(c.Prefix, "/") {
		return nil, fmt.Errorf("console: the prefix %q does not begin with a slash", c.Prefix)
	}
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	c.Logger = guard.Logger(c.Logger)
	j, err := jobs.New(engine, jobs.Config{Local: true, CountTime: countTime, Clock: c.Clock, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	_, keeps := c.Engine.(store.Keeper)
	s := &server{
		Config: c, ctx: ctx, engine: engine, jobs: j, keeps: keeps,
		pages: make(chan struct{}, atOnce), live: make(chan struct{}, streams), pace: newPacer(c.Clock), groups: map[string]*groupTable{},
		byKeys: map[keyFilter]*keyTable{}, minutes: map[string]*cached[[]jobs.HistoryPoint]{},
		rests: map[int]*cached[survey]{},
	}
	s.templates, err = template.New("").Funcs(s.funcs()).ParseFS(static, "static/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if keeps && len(s.Checkpoints) > 0 {
		go j.Work(ctx, s.about, nil) // ends with ctx
	}
	return s.protect(http.StripPrefix(c.Prefix, s.routes())), nil
}

type server struct {
	Config
	ctx       context.Context //nolint:containedctx // of the jobs that it runs
	engine    store.Inspector
	jobs      *jobs.Jobs
	keeps     bool // jobs outlive this process
	templates *template.Template

	pages chan struct{} // sent to by each page that is being made
	live  chan struct{} // likewise of streams of events
	pace  *pacer        // of reads of whole queues

	looks  cached[*look]
	counts map[string]*cached[store.Counts] // of queues, by name; of the look that is being made

	// The last hour of queues and outboxes, by name, and when it was read; owned by the
	// look that is being made.
	minutesOfAll map[string][]jobs.HistoryPoint
	minutesAt    time.Time

	logs cached[logged]

	starting sync.Mutex // of jobs
	resumed  sync.Once  // jobs that were left

	mu      sync.Mutex
	groups  map[string]*groupTable // by queue and filter
	byKeys  map[keyFilter]*keyTable
	minutes map[string]*cached[[]jobs.HistoryPoint] // of queues, by name
	rests   map[int]*cached[survey]                 // of jobs, by id
}

type person struct {
	role Role
	who  string
}

// Acts and Who are for templates.
func (p person) Acts() bool { return p.role >= Actor }

func (p person) Who() string { return p.who }

type personKey struct{}

func personOf(r *http.Request) person {
	p, _ := r.Context().Value(personKey{}).(person)
	return p
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for path, page := range map[string]func(*http.Request) (view, error){
		"/{$}": s.overview, "/queue": s.queue, "/message": s.message, "/bykey": s.byKey, "/layers": s.layers, "/start": s.confirm,
		"/backends": s.backends, "/jobs": s.jobList, "/job": s.job, "/log": s.log, "/outboxes": s.outboxes,
	} {
		mux.Handle("GET "+path, s.page(page))
	}
	if s.Keys != nil {
		mux.Handle("GET /keys", s.page(s.keys))
	}
	for path, action := range map[string]func(*http.Request) (string, error){
		"/start": s.start, "/job": s.order, "/queue": s.pauseQueue, "/bykey": s.holdKey, "/backends": s.steer, "/edit": s.edit,
	} {
		mux.Handle("POST "+path, s.action(action))
	}
	mux.HandleFunc("GET /payload", s.payload)
	mux.HandleFunc("GET /events", s.events)
	for _, name := range []string{"style.css", "script.js"} {
		mux.HandleFunc("GET /"+name, asset(name))
	}
	return mux
}

// asset serves a file, which browsers request again only after a change.
func asset(name string) http.HandlerFunc {
	b, err := static.ReadFile("static/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	sum := sha256.Sum256(b)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	kind := map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8"}[name]
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(b)
	}
}

func (s *server) protect(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		p, err := s.who(r)
		if err == nil && p.role < Reader {
			err = errors.New("the role may not look")
		}
		if err == nil {
			err = crossOrigin.Check(r)
		}
		if err != nil {
			s.Logger.LogAttrs(r.Context(), slog.LevelWarn, "console: a request is refused",
				slog.String("path", r.URL.Path), slog.String("from", r.RemoteAddr), slog.Any("error", err))
			http.Error(w, "This console is not open to you. "+s.hint(), http.StatusForbidden)
			return
		}
		if p.Acts() {
			s.resumed.Do(s.resume)
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), personKey{}, p)))
	})
}

// hint returns advice on how to get in. Only the program's log has the reason for a
// refusal.
func (s *server) hint() string {
	if s.Authorize == nil {
		return "It is open to browsers on its own machine, under the name localhost: forward its port, or set Authorize in its program."
	}
	return "Authorize in its program has refused the request. The log of the program has the reason."
}

func (s *server) who(r *http.Request) (person, error) {
	if s.Authorize != nil {
		role, who, err := s.Authorize(r)
		if err == nil && role >= Actor && who == "" {
			err = errors.New("an Actor needs a name")
		}
		return person{role, strings.ToValidUTF8(who, "?")}, err
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !net.ParseIP(host).IsLoopback() {
		return person{}, fmt.Errorf("%s is not this machine, and Authorize is not set", r.RemoteAddr)
	}
	name := r.Host // the name of another site may lead here
	if h, _, err := net.SplitHostPort(r.Host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	if name != "localhost" && !net.ParseIP(name).IsLoopback() {
		return person{}, fmt.Errorf("the host %q is not a name of this machine, and Authorize is not set", r.Host)
	}
	return person{role: Reader}, nil
}
