package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirflow/weir/console"
)

func (a *app) ui() *cobra.Command {
	var listen string
	var readOnly bool
	var p person
	c := &cobra.Command{
		Use: "ui", Short: "Show the database in a browser, until Ctrl-C", Args: none,
		Long: `Show the database in a browser, until Ctrl-C: problems, dead letters in groups,
what happens if one is repeated, jobs, backends, the log of actions.

It listens on this machine only. Anyone with the address that it prints may act,
with your name in the log. Other users of this machine do not have the address,
and their servers never get the cookie that your browser keeps for it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			host, _, err := net.SplitHostPort(listen)
			if err != nil || host != "localhost" && !net.ParseIP(host).IsLoopback() {
				return usagef("--listen %q: it must be an address of this machine, such as 127.0.0.1:8080", listen)
			}
			by, _ := p.read(c)
			return a.with(c.Context(), func(ctx context.Context, db *database) error {
				s, ok := db.store.(inspected)
				if !ok {
					return usagef("%s cannot be looked into: weir ui is for sqlite:, postgres:// and nats://", a.engine())
				}
				role := console.Actor
				if readOnly {
					role = console.Reader
				}
				g := newGate(role, by)
				ui, err := console.Handler(ctx, console.Config{
					Engine: s.Inspector, Prefix: g.path, Keys: db.listed, Authorize: g.authorize, Clock: a.clock, Logger: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					return err
				}
				return a.serve(ctx, listen, g, ui)
			})
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "the `ADDRESS` of this machine; port 0 is a free one")
	c.Flags().BoolVar(&readOnly, "read-only", false, "nobody may act")
	c.Flags().StringVar(&p.by, "by", "", "`WHO` acts, for the log (default: your user and host)")
	return c
}

func (a *app) serve(ctx context.Context, address string, g *gate, ui http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: g.letIn(ui), ReadHeaderTimeout: connectTimeout, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends live pages with ctx
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(late) != nil {
			_ = server.Close() // Close does not wait
		}
	})
	defer stop()
	if err := a.print(g.address(l.Addr()) + "\n"); err != nil {
		return errors.Join(err, l.Close())
	}
	a.note("Open this address in a browser. Ctrl-C ends it.")
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// gate admits browsers that have the address printed by weir ui.
//
// Browsers send a cookie of 127.0.0.1 to every port of the machine, including other
// users' servers. So the console is below a secret path, to which the cookie is limited.
type gate struct {
	code string // in the printed address, and the value of the cookie
	path string // starts with a slash; as secret as the code
	role console.Role
	who  string
}

const cookieName = "weir-ui"

// newGate returns a gate with a random code and path.
func newGate(role console.Role, who string) *gate {
	return &gate{code: rand.Text(), path: "/" + rand.Text(), role: role, who: who}
}

// address returns the console's URL.
func (g *gate) address(l net.Addr) string {
	return fmt.Sprintf("http://%s%s/?code=%s", l, g.path, g.code)
}

func (g *gate) knows(code string) bool {
	return subtle.ConstantTimeCompare([]byte(code), []byte(g.code)) == 1
}

// letIn exchanges the code in the address for a cookie, and passes other requests on. It
// refuses host names other than localhost and loopback addresses, because they may
// resolve to this machine without belonging to it.
func (g *gate) letIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		host = strings.Trim(host, "[]")
		if host != "localhost" && !net.ParseIP(host).IsLoopback() {
			http.Error(w, "not a name of this machine", http.StatusForbidden)
			return
		}
		if !strings.HasPrefix(r.URL.Path, g.path+"/") {
			http.Error(w, "Open the address that weir ui has printed.", http.StatusForbidden)
			return
		}
		if r.URL.Path == g.path+"/" && g.knows(r.URL.Query().Get("code")) {
			http.SetCookie(w, &http.Cookie{Name: cookieName, Value: g.code, Path: g.path + "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			w.Header().Set("Referrer-Policy", "no-referrer")
			http.Redirect(w, r, g.path+"/", http.StatusSeeOther)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *gate) authorize(r *http.Request) (console.Role, string, error) {
	c, err := r.Cookie(cookieName)
	if err != nil || !g.knows(c.Value) {
		return console.Nobody, "", errors.New("open the address that weir ui has printed")
	}
	return g.role, g.who, nil
}
