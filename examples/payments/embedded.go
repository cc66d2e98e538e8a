package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/weirflow/weir/ext/jetstream/embedded"
)

type withServer struct {
	engine
	server *embedded.Server
}

// startEmbedded starts the server in the supervisor's process, so that workers can be
// killed without it. Workers connect over loopback.
func startEmbedded(ctx context.Context, at location) (engine, error) {
	s, err := embedded.Start(filepath.Join(at.Dir, "jetstream"), embedded.Config{Logger: quiet, Options: func(o *server.Options) {
		o.DontListen = false
		o.Host = "127.0.0.1"
		o.Port = server.RANDOM_PORT
	}})
	if err != nil {
		return nil, err
	}
	at.URL = s.URL()
	e, err := newQueues(ctx, at)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &withServer{e, s}, nil
}

func (e *withServer) close(temporary bool) error {
	return errors.Join(e.engine.close(temporary), e.server.Close())
}
