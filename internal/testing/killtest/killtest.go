package killtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/testing/child"
)

// killsEnv is the environment variable with the number of kills of servers and clients.
// The default is a few.
const killsEnv = "WEIR_KILLS"

// Addition is the content of a request.
type Addition struct {
	Step     string
	Position int64
	Value    int64
}

// Service is a server process's database, with the answers and the counters.
type Service interface {
	exactlyonce.Records

	// Add makes an addition and stores the answer to req, both or neither, and returns
	// the stored answer.
	Add(ctx context.Context, req exactlyonce.Request, a Addition, answer []byte) ([]byte, error)
}

// Books are the state of the counters.
type Books struct {
	Totals map[string]int64         // by step
	Added  map[string]map[int64]int // additions by step and position
}

// NewBooks returns empty books.
func NewBooks() Books {
	b := Books{Totals: map[string]int64{}, Added: map[string]map[int64]int{}}
	for _, step := range steps {
		b.Added[step] = map[int64]int{}
	}
	return b
}

// Config configures [Run].
type Config struct {
	Database string                                   // passed to Child's open
	Servers  int                                      // behind one load balancer
	Books    func(ctx context.Context) (Books, error) // reads the counters in the test's process
}

// Each number of the stream results in two requests.
var steps = [...]string{"debit", "credit"}

func valueAt(position int64) int64 { return position%7 + 1 }

// Run kills servers and clients at random, each WEIR_KILLS times, by default a few. Law
// X1: in the end the counters have each element of the stream once, and so has the
// clients' output.
func Run(t *testing.T, c Config) {
	t.Helper()
	kills := 3
	if s := os.Getenv(killsEnv); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		kills = n
	}
	r := &run{config: c, dir: t.TempDir(), network: newNetwork(c.Servers), servers: make([]*child.Process, c.Servers)}
	defer r.stop()
	for i := range c.Servers {
		require.NoError(t, r.startServer(i))
	}
	require.NoError(t, r.startClient())

	errs := make([]error, 2)
	var both sync.WaitGroup
	both.Go(func() { errs[0] = r.killServers(kills) })
	both.Go(func() { errs[1] = r.killClients(kills) })
	both.Wait()
	require.NoError(t, errors.Join(errs...))
	length := r.network.end()
	require.NoError(t, r.client.Wait(patience), "%v", r.network)
	r.stop()

	books, err := c.Books(t.Context())
	require.NoError(t, err)
	var sum int64
	for position := int64(1); position <= length; position++ {
		sum += valueAt(position)
	}
	for _, step := range steps {
		assert.Equal(t, sum, books.Totals[step], step)
		assert.Len(t, books.Added[step], int(length), step)
		for position, n := range books.Added[step] {
			assert.Equal(t, 1, n, "%s of element %d", step, position)
		}
	}
	output, err := os.ReadFile(filepath.Join(r.dir, outputFile))
	require.NoError(t, err)
	lines := strings.Fields(string(output))
	slices.Sort(lines)
	assert.Len(t, lines, int(length), "the output of the clients")
	assert.Len(t, slices.Compact(lines), int(length), "the output of the clients, each position once")
	assert.Empty(t, r.network.inDoubt, "requests in doubt that were never answered")
	assert.NoError(t, errors.Join(r.network.errs...))
	t.Logf("%d elements, %d kills of servers and of clients: %v", length, kills, r.network)
}

const patience = time.Minute

type run struct {
	config  Config
	dir     string // of the clients
	network *network

	servers []*child.Process
	client  *child.Process
	stopped bool
}

// stop ends all processes and the network. It may be called twice.
func (r *run) stop() {
	if r.stopped {
		return
	}
	r.stopped = true
	for _, p := range append(slices.Clone(r.servers), r.client) {
		if p != nil {
			_ = p.Kill() // it may have ended
		}
	}
	r.network.close()
}

func (r *run) startServer(i int) error {
	p, address, err := start(settings{Role: roleServer, Database: r.config.Database})
	if err != nil {
		return err
	}
	r.servers[i] = p
	r.network.setTarget(i, "http://"+address)
	return nil
}

func (r *run) startClient() (err error) {
	r.client, _, err = start(settings{Role: roleClient, URL: r.network.server.URL, Dir: r.dir})
	return err
}

func (r *run) killServers(kills int) error {
	for range kills {
		if err := r.progress(); err != nil {
			return err
		}
		i := rand.IntN(r.config.Servers)
		if err := r.servers[i].Kill(); err != nil {
			return fmt.Errorf("server %d: %w", i, err)
		}
		r.network.setTarget(i, "")
		if err := r.startServer(i); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) killClients(kills int) error {
	for range kills {
		if err := r.progress(); err != nil {
			return err
		}
		if err := r.client.Kill(); err != nil {
			return fmt.Errorf("client: %w", err)
		}
		if err := r.startClient(); err != nil {
			return err
		}
	}
	return nil
}

// progress waits for some answers, and then for a random time.
func (r *run) progress() error {
	before := r.network.progress()
	for begun := time.Now(); r.network.progress() < before+10; time.Sleep(time.Millisecond) {
		if time.Since(begun) > patience {
			return fmt.Errorf("killtest: no progress: %v", r.network)
		}
	}
	time.Sleep(rand.N(40 * time.Millisecond))
	return nil
}
