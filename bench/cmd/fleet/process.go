package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/child"
)

const (
	childName = "fleet"
	takes     = 20 * time.Millisecond // a call
)

type process struct {
	Engine  string // the file of SQLite, or the URL of PostgreSQL; "" for a limit that is not shared
	Limit   int
	Service string        // URL with the name of the process; "" if a call only takes its time
	Window  time.Duration // counts calls for Window, after a start of the same length; 0 means until it is killed
}

func (p process) start() (*child.Process, error) {
	arg, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return child.Start(childName, string(arg))
}

// runChild does not return in a process that start has started.
func runChild() {
	child.Run(childName, func(arg string) error {
		var p process
		err := json.Unmarshal([]byte(arg), &p)
		if err != nil {
			return err
		}
		return p.run(context.Background())
	})
}

// run makes as many calls as the backend allows, and prints how many in the window.
func (p process) run(ctx context.Context) error {
	options := []backend.Option{backend.Limit(p.Limit), backend.LongestCall(time.Second)}
	if p.Engine != "" {
		engine, err := open(ctx, p.Engine)
		if err != nil {
			return err
		}
		defer engine.Close() //nolint:errcheck // the process ends
		options = append(options, backend.Shared(engine))
	}
	var calls atomic.Int64
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, n int) (int, error) {
		err := p.call(ctx)
		calls.Add(1)
		return n, err
	}), time.Minute, 100, asyncop.WithBackend(backend.New("service", options...)))
	if p.Window == 0 {
		return until(ctx, op)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- until(ctx, op) }() // ends with ctx
	time.Sleep(p.Window)
	before := calls.Load()
	time.Sleep(p.Window)
	fmt.Println(calls.Load() - before)
	cancel()
	return <-ended
}

// open opens the engine with a name: see process.Engine.
func open(ctx context.Context, name string) (store.Keeper, error) {
	if strings.HasPrefix(name, "postgres://") {
		return postgres.Open(ctx, name)
	}
	return sqlite.Open(ctx, name)
}

func (p process) call(ctx context.Context) error {
	if p.Service == "" {
		time.Sleep(takes)
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Service, nil)
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return reply.Body.Close()
}

func until(ctx context.Context, op *asyncop.AsyncWaitOperator[int, int]) error {
	elements := func(yield func(int) bool) {
		for i := 0; ctx.Err() == nil && yield(i); i++ {
		}
	}
	for _, err := range op.Results(elements) {
		if err != nil {
			return err
		}
	}
	return nil
}
