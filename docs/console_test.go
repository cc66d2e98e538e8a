package docs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

type account struct{ Name string }

// session is a placeholder for the sessions of a program.
func session(r *http.Request) (account, error) {
	if name := r.Header.Get("X-User"); name != "" {
		return account{name}, nil
	}
	return account{}, errors.New("not logged in")
}

func mountConsole(ctx context.Context, engine store.Engine) error {
	ui, err := console.Handler(ctx, console.Config{
		Engine: engine, // of sqlite.Open, postgres.Open or another
		Prefix: "/weir",
		Authorize: func(r *http.Request) (console.Role, string, error) {
			user, err := session(r) // yours
			if err != nil {
				return console.Nobody, "", err
			}
			return console.Actor, user.Name, nil
		},
	})
	if err != nil {
		return err
	}
	http.Handle("/weir/", ui)
	return nil
}

func Example_console() {
	if err := mountConsole(context.Background(), memory.Open()); err != nil {
		fmt.Println(err)
	}
	for _, user := range []string{"", "ann"} {
		r := httptest.NewRequest(http.MethodGet, "/weir/", nil)
		r.Header.Set("X-User", user)
		w := httptest.NewRecorder()
		http.DefaultServeMux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 403
	// 200
}
