package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/vfs"
)

// startTimeout is how long a server may take to read its directory: some seconds for a
// million messages.
const (
	startTimeout = 2 * time.Minute
	lookAgain    = 50 * time.Millisecond
)

// Server is a NATS server in this process. Safe for concurrent use.
type Server struct {
	server *server.Server
	lock   vfs.Lock

	closing sync.Once
	err     error
}

// Config are the settings of a [Server]. The zero value is a single server that only this
// process reaches.
type Config struct {
	Logger *slog.Logger // of the server's warnings and errors; the default is slog.Default()

	// Cluster makes the server a member of a cluster. Then it listens at two addresses,
	// and Start does not wait for the other servers: calls of clients fail until most of
	// the servers run. The servers trust anyone who reaches their addresses, unless
	// Options sets TLS and users.
	Cluster *Cluster

	// Options, if not nil, changes the server's options after this package has set its
	// own: limits, accounts, a port, TLS.
	Options func(o *server.Options)
}

// Cluster is the place of a [Server] in a cluster. Addresses have the form host:port.
type Cluster struct {
	Name    string   // of the cluster; the same at each server
	Server  string   // the unique name of this server, the same at each start
	Clients string   // where clients connect to this server
	Address string   // where the other servers connect to this server
	Servers []string // such addresses of all servers, Address included; the same at each server
}

func (c *Cluster) apply(o *server.Options) (err error) {
	if c.Name == "" || c.Server == "" {
		return fmt.Errorf("the cluster %q and its server %q must have names", c.Name, c.Server)
	}
	if !slices.Contains(c.Servers, c.Address) {
		return fmt.Errorf("cluster %s: its servers %q do not include the address %q", c.Name, c.Servers, c.Address)
	}
	o.Host, o.Port, err = split(c.Clients)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	for _, address := range c.Servers {
		if _, _, err := split(address); err != nil {
			return fmt.Errorf("cluster %s: %w", c.Name, err)
		}
	}
	o.ServerName = c.Server
	o.DontListen = false
	o.Cluster.Name = c.Name
	o.Cluster.Host, o.Cluster.Port, err = split(c.Address)
	// The server derives the cluster's size from the routes, so its own address is
	// included.
	o.Routes = server.RoutesFromStr("nats://" + strings.Join(c.Servers, ",nats://"))
	return err
}

func split(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return "", 0, fmt.Errorf("address %s: the port must be a number from 1 to 65535", address)
	}
	return host, int(number), nil
}

// Start starts a server that keeps its streams in a directory, which it makes if needed.
// It returns when the server is ready. The server must be closed.
func Start(dir string, c Config) (*Server, error) {
	if dir == "" {
		return nil, errors.New("embedded: a server without a directory")
	}
	o := &server.Options{
		ServerName: "weir", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, SyncAlways: true,
	}
	if c.Cluster != nil {
		if err := c.Cluster.apply(o); err != nil {
			return nil, fmt.Errorf("embedded: %w", err)
		}
	}
	if c.Options != nil {
		c.Options(o)
	}
	c.Logger = guard.Logger(c.Logger)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	// The server itself does not detect another server on its files.
	lock, err := vfs.OS().Lock(filepath.Join(dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("embedded: directory %s: %w", dir, err)
	}
	s, err := start(o, c.Logger)
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
	fatal := make(chan error, 1)
	s.SetLoggerV2(logger{l, fatal}, false, false, false)
	s.Start()
	if err := ready(s, fatal); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, err
	}
	return s, nil
}

func ready(s *server.Server, fatal <-chan error) error {
	for waited := time.Duration(0); !s.ReadyForConnections(lookAgain); waited += lookAgain {
		if waited >= startTimeout {
			return fmt.Errorf("the server was not ready within %v", startTimeout)
		}
		select {
		case err := <-fatal:
			return err
		default:
		}
	}
	if !s.JetStreamEnabled() {
		return errors.New("the server could not start JetStream: see its log")
	}
	return nil
}

// Connect returns a connection within the process. A server with accounts still requires
// credentials.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect("", append([]nats.Option{s.InProcess()}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return nc, nil
}

// InProcess returns the option to connect within the process:
//
//	engine, err := jetstream.Open(ctx, "", jetstream.WithNATSOptions(server.InProcess()))
func (s *Server) InProcess() nats.Option { return nats.InProcessServer(s.server) }

// Dial returns a connection within the process, for a nats.CustomDialer.
func (s *Server) Dial() (net.Conn, error) {
	c, err := s.server.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return c, nil
}

// URL returns the server's address for other processes, if [Config] has given it a port.
func (s *Server) URL() string { return s.server.ClientURL() }

// Close shuts the server down, and returns when it has ended. It cuts connections, so
// close them before. A second Close has no effect.
func (s *Server) Close() error {
	s.closing.Do(func() {
		s.server.Shutdown()
		s.server.WaitForShutdown()
		s.err = s.lock.Close()
	})
	return s.err
}

type logger struct {
	l     *slog.Logger
	fatal chan<- error // capacity 1: receives why the server cannot start
}

func (l logger) log(level slog.Level, format string, v []any) {
	ctx := context.Background()
	if l.l.Enabled(ctx, level) {
		l.l.Log(ctx, level, "weir: NATS server: "+fmt.Sprintf(format, v...))
	}
}

func (l logger) Noticef(format string, v ...any) { l.log(slog.LevelDebug, format, v) }
func (l logger) Warnf(format string, v ...any)   { l.log(slog.LevelWarn, format, v) }
func (l logger) Errorf(format string, v ...any)  { l.log(slog.LevelError, format, v) }

// Fatalf logs an error at which a standalone server would exit.
func (l logger) Fatalf(format string, v ...any) {
	l.log(slog.LevelError, format, v)
	select {
	case l.fatal <- fmt.Errorf(format, v...):
	default:
	}
}

func (logger) Debugf(string, ...any) {}
func (logger) Tracef(string, ...any) {}
