package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/store"
)

// showConsole serves an engine's console until stop is called. Without an Authorize
// function it is read-only and listens only on the loopback interface.
func showConsole(ctx context.Context, engine store.Engine, errOut io.Writer) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	ui, err := console.Handler(ctx, console.Config{Engine: engine, Logger: quiet})
	if err != nil {
		cancel()
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, err
	}
	server := &http.Server{Handler: ui, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() { // ends with the server
		defer close(ended)
		_ = server.Serve(l) // until Close
	}()
	fmt.Fprintf(errOut, "The console: http://%s/\n", l.Addr())
	return func() {
		cancel()
		_ = server.Close() // the console only reads
		<-ended
	}, nil
}
