package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
)

type view struct {
	Name  string // of the template
	Title string
	Data  any

	// Set by page.
	Person person
	Keeps  bool
	Keys   bool // there is a page of them
	ByKey  bool // the engine counts messages by key
	Now    time.Time
	Status int
}

// statusError is an error caused by the person.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func wrong(format string, args ...any) error {
	return &statusError{http.StatusUnprocessableEntity, fmt.Sprintf(format, args...)}
}

func missing(format string, args ...any) error {
	return &statusError{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

// page serves the result of f. queryTime bounds f and the rendering together. Only atOnce
// pages are made at a time.
func (s *server) page(f func(*http.Request) (view, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), queryTime)
		defer cancel()
		var v view
		var body []byte
		err := s.limited(ctx, func() (err error) {
			v, err = f(r.WithContext(ctx))
			if err == nil {
				body, err = s.rendered(ctx, personOf(r), v)
			}
			return err
		})
		if err != nil {
			s.fail(w, r, err)
			return
		}
		send(w, v.Status, body)
	})
}

// limited runs f once fewer than the maximum number of pages are being made.
func (s *server) limited(ctx context.Context, f func() error) error {
	select {
	case s.pages <- struct{}{}:
		defer func() { <-s.pages }()
		return f()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *server) action(f func(*http.Request) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !personOf(r).Acts() {
			s.fail(w, r, &statusError{http.StatusForbidden, "Read only: changing this needs the role Actor."})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), loadTime) // a job counts when it starts
		defer cancel()
		if err := r.ParseForm(); err != nil {
			s.fail(w, r, wrong("The form cannot be read: %v", err))
			return
		}
		to, err := f(r.WithContext(ctx))
		if err != nil {
			s.fail(w, r, err)
			return
		}
		http.Redirect(w, r, s.Prefix+to, http.StatusSeeOther)
	})
}

func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	v := view{Name: "error", Title: "That did not work", Data: guard.Text(err), Status: http.StatusInternalServerError}
	e, mine := errors.AsType[*statusError](err)
	switch {
	case mine:
		v.Status = e.status
	case errors.Is(err, fs.ErrNotExist):
		v.Status = http.StatusNotFound
	case errors.Is(err, errPageTooLarge):
		v.Status, v.Data = http.StatusUnprocessableEntity, "There is too much to show: "+errPageTooLarge.Error()+". Choose less."
	case errors.Is(err, context.DeadlineExceeded):
		v.Status, v.Data = http.StatusServiceUnavailable, "The engine did not answer in "+queryTime.String()+". Choose less, or try again."
	}
	if v.Status >= http.StatusInternalServerError && r.Context().Err() == nil {
		s.Logger.LogAttrs(r.Context(), slog.LevelWarn, "console: a page failed", slog.String("path", r.URL.Path), slog.String("error", guard.Text(err)))
	}
	s.render(w, r, v)
}

func (s *server) render(w http.ResponseWriter, r *http.Request, v view) {
	body, err := s.rendered(r.Context(), personOf(r), v)
	if err != nil {
		s.Logger.LogAttrs(r.Context(), slog.LevelWarn, "console: a page cannot be shown", slog.String("page", v.Name), slog.Any("error", err))
		http.Error(w, "This page cannot be shown; the log of the program has the reason.", http.StatusInternalServerError)
		return
	}
	send(w, v.Status, body)
}

func (s *server) rendered(ctx context.Context, p person, v view) ([]byte, error) {
	v.Person = p
	v.Keeps = s.keeps
	v.Keys = s.Config.Keys != nil
	v.Now = s.Clock.Now()
	_, v.ByKey = s.engine.(store.KeyCounter)
	b := &pageBuffer{ctx: ctx}
	if err := s.templates.ExecuteTemplate(b, v.Name, v); err != nil {
		return nil, err
	}
	return b.page.Bytes(), nil
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if status != 0 {
		w.WriteHeader(status)
	}
	_, _ = w.Write(body) // or the person has left
}

var errPageTooLarge = fmt.Errorf("the page would have more than %d MB", maxPage>>20)

// pageBuffer collects a page. It refuses bytes when the page is too large, or its time
// has passed.
type pageBuffer struct {
	page bytes.Buffer
	ctx  context.Context //nolint:containedctx // of one rendering
}

func (b *pageBuffer) Write(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.page.Len()+len(p) > maxPage {
		return 0, errPageTooLarge
	}
	return b.page.Write(p)
}

func (s *server) funcs() template.FuncMap {
	return template.FuncMap{
		"text": visible, "cut": cut, "field": fieldText, "failure": failure, "age": age, "size": size, "took": took, "link": s.link, "nav": nav,
		"quoted": strconv.Quote, "isText": utf8.ValidString,
		"ago":   func(t time.Time) string { return age(max(0, s.Clock.Since(t))) },
		"when":  timeElement,
		"stamp": when, // for the value of a field
		"num":   num,
		"count": count,
		"totalOf": func(j jobs.Job) string {
			_, of := j.Reached()
			if j.Uncounted {
				return "–"
			}
			return num(of)
		},
		"rate":  rateText,
		"until": func(t time.Time) string { return age(max(0, s.Clock.Until(t))) },
		"past":  func(t time.Time) bool { return !t.After(s.Clock.Now()) },
	}
}

func nav(v view, path, text string) map[string]any {
	here := map[string]string{
		"overview": "/", "layers": "/layers", "queue": "/layers", "message": "/layers", "bykey": "/layers", "confirm": "/layers", "backends": "/backends",
		"jobs": "/jobs", "job": "/jobs", "log": "/log", "outboxes": "/outboxes", "keys": "/keys",
	}
	return map[string]any{"Path": path, "Text": text, "Here": here[v.Name] == path}
}

// link returns a page's address, with parameters and values in turn.
func (s *server) link(path string, parameters ...any) string {
	q := url.Values{}
	for i := 0; i+1 < len(parameters); i += 2 {
		q.Set(fmt.Sprint(parameters[i]), fmt.Sprint(parameters[i+1]))
	}
	return s.address(path, q)
}

func (s *server) address(path string, q url.Values) string {
	if len(q) == 0 {
		return s.Prefix + path
	}
	return s.Prefix + path + "?" + q.Encode()
}

// fieldText returns a text for a form's field, or "" if the field would change it: hidden
// characters, or such that change the direction of text.
func fieldText(text string) string {
	if visible(text) != text {
		return ""
	}
	return text
}

// visible makes hidden characters visible, except line ends and tabs.
func visible(v any) string { return guard.Visible(fmt.Sprint(v), "\n\t") }

// failure returns the beginning of an error's text, perhaps of another program, without
// secrets in URLs.
func failure(n int, v any) string { return cut(n, guard.WithoutSecrets(fmt.Sprint(v))) }

// cut returns the beginning of a text, made visible, in one line.
func cut(n int, v any) string {
	s := fmt.Sprint(v)
	more := len(s) > n
	if more {
		s = s[:n]
		for range utf8.UTFMax { // not within a character
			r, size := utf8.DecodeLastRuneInString(s)
			if r != utf8.RuneError || size != 1 {
				break
			}
			s = s[:len(s)-1]
		}
	}
	s = strings.ReplaceAll(visible(s), "\n", " ")
	if more {
		s += "…"
	}
	return s
}

func when(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// timeElement returns a time for a page. The script adds the local time.
func timeElement(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	return template.HTML(`<time datetime="` + t.UTC().Format(time.RFC3339) + `">` + when(t) + `</time>`) //nolint:gosec // digits and separators
}

func num(n any) string {
	digits := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// age returns a duration in its one or two largest units.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	units := []struct {
		name string
		d    time.Duration
	}{{"d", day}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d < u.d {
			continue
		}
		text := strconv.Itoa(int(d/u.d)) + " " + u.name
		rest := d % u.d
		if i+1 < len(units) && d < 10*u.d && rest >= units[i+1].d {
			text += " " + strconv.Itoa(int(rest/units[i+1].d)) + " " + units[i+1].name
		}
		return text
	}
	return "0 s"
}
