package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weirflow/weir/internal/nils"
	"github.com/weirflow/weir/internal/vfs"
)

// startTimeout is how long a server may take to read its directory: a million messages take some seconds.
const startTimeout = 2 * time.Minute

// Server is a NATS server in this process. Safe for concurrent use.
type Server struct {
	server *server.Server
	lock   vfs.Lock

	closing sync.Once
	err     error // of Close
}

// Option changes a setting of a [Server].
type Option func(*settings)

type settings struct {
	logger  *slog.Logger
	options []func(*server.Options)
}

// WithLogger sets the logger of the server's warnings and errors; the default is slog.Default().
func WithLogger(l *slog.Logger) Option {
	nils.Refuse("embedded: WithLogger", "logger", l)
	return func(s *settings) { s.logger = l }
}

// WithServerOptions changes the server's own options after those of this package were set: limits, accounts, a port, a cluster.
func WithServerOptions(change func(o *server.Options)) Option {
	nils.Refuse("embedded: WithServerOptions", "function", change)
	return func(s *settings) { s.options = append(s.options, change) }
}

// Start starts a server that keeps its streams in a directory, which it makes if need be. It returns when the server is ready.
// The server must be closed.
func Start(dir string, opts ...Option) (*Server, error) {
	if dir == "" {
		return nil, errors.New("embedded: a server without a directory")
	}
	set := settings{logger: slog.Default()}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("embedded: Start: option %d is nil", i))
		}
		opt(&set)
	}
	o := &server.Options{
		ServerName: "weir", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, SyncAlways: true,
	}
	for _, change := range set.options {
		change(o)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	// The server itself does not notice that another one writes to its files.
	lock, err := vfs.OS().Lock(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("embedded: directory %s: %w", dir, err)
	}
	s, err := start(o, set.logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("embedded: directory %s: %w", dir, err), lock.Close())
	}
	return &Server{server: s, lock: lock}, nil
}

func start(o *server.Options, l *slog.Logger) (*server.Server, error) {
	s, err := server.NewServer(o)
	if err != nil {
		return nil, err
	}
	s.SetLoggerV2(logger{l}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("the server was not ready within %v", startTimeout)
	}
	if o.JetStream && !s.JetStreamEnabled() {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, errors.New("the server could not start JetStream: see its log")
	}
	return s, nil
}

// Connect returns a connection within the process. It needs no port; a server with accounts needs credentials all the same.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect("", append([]nats.Option{nats.InProcessServer(s.server)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return nc, nil
}

// Dial returns a connection within the process, for a nats.CustomDialer.
func (s *Server) Dial() (net.Conn, error) {
	c, err := s.server.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return c, nil
}

// URL returns where other processes reach the server, if [WithServerOptions] has given it a port.
func (s *Server) URL() string { return s.server.ClientURL() }

// Close ends the server, and returns when that is done. Connections are cut, so close them before. A second Close does nothing.
func (s *Server) Close() error {
	s.closing.Do(func() {
		s.server.Shutdown()
		s.server.WaitForShutdown()
		s.err = s.lock.Close()
	})
	return s.err
}

// logger is the server's logger.
type logger struct{ l *slog.Logger }

func (l logger) log(level slog.Level, format string, v []any) {
	ctx := context.Background()
	if l.l.Enabled(ctx, level) {
		l.l.Log(ctx, level, "weir: NATS server: "+fmt.Sprintf(format, v...))
	}
}

func (l logger) Noticef(format string, v ...any) { l.log(slog.LevelDebug, format, v) }
func (l logger) Warnf(format string, v ...any)   { l.log(slog.LevelWarn, format, v) }
func (l logger) Fatalf(format string, v ...any)  { l.log(slog.LevelError, format, v) }
func (l logger) Errorf(format string, v ...any)  { l.log(slog.LevelError, format, v) }
func (logger) Debugf(string, ...any)             {}
func (logger) Tracef(string, ...any)             {}
