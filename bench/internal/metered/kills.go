package metered

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/destel/rill"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliteanswers"
)

const killCalls = 16

// childEnv is set in a process to be killed: client, provider's address, directory and
// number of rows.
const childEnv = "WEIR_BENCH_METERED"

type killResult struct {
	kills      int
	paidTwice  int // calls for rows already paid for
	lost       int
	doubled    int // repeated rows of the output
	outOfOrder int // rows directly after a greater row
}

// runKills runs a client in processes that are killed, until one completes. With keys the
// provider recognises repeated calls and does not charge for them.
func runKills(ctx context.Context, name string, rows, kills int, hasKeys bool) (r killResult, err error) {
	dir, err := os.MkdirTemp("", "weir-metered")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p := &keyedProvider{hasKeys: hasKeys, paid: map[string]int{}}
	server := httptest.NewServer(p)
	defer server.Close()
	for {
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{name, server.URL, dir, strconv.Itoa(rows)}, " "))
		child.Stderr = os.Stderr
		err := child.Start()
		if err != nil {
			return r, err
		}
		if r.kills == kills {
			err = child.Wait()
			if err != nil {
				return r, fmt.Errorf("metered: kills, %s: %w", name, err)
			}
			break
		}
		waitFor(ctx, func() bool { return p.rowsPaid() >= (r.kills+1)*rows/(kills+1) })
		_ = child.Process.Kill()
		_ = child.Wait()
		r.kills++
	}
	r.paidTwice = p.paidTwice()
	written, err := readRows(filepath.Join(dir, "out"))
	if err != nil {
		return r, err
	}
	r.check(written, rows)
	return r, nil
}

// keyedProvider answers and charges calls for rows. It is safe for concurrent use.
type keyedProvider struct {
	hasKeys bool // repeated calls are free; the key is the row

	mu   sync.Mutex
	paid map[string]int // guarded by mu; charges by row
}

func (p *keyedProvider) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	row, err := io.ReadAll(q.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	if !p.hasKeys || p.paid[string(row)] == 0 {
		p.paid[string(row)]++
	}
	p.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
}

func (p *keyedProvider) rowsPaid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paid)
}

func (p *keyedProvider) paidTwice() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range p.paid {
		n += times - 1
	}
	return n
}

func waitFor(ctx context.Context, ok func() bool) {
	for !ok() && ctx.Err() == nil {
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *killResult) check(written []int, rows int) {
	seen := make([]bool, rows)
	for i, row := range written {
		if seen[row] {
			r.doubled++
		}
		seen[row] = true
		if i > 0 && row < written[i-1] {
			r.outOfOrder++
		}
	}
	for _, isThere := range seen {
		if !isThere {
			r.lost++
		}
	}
}

// readRows returns an output's rows, without a torn last line.
func readRows(name string) (rows []int, err error) {
	text, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	whole := text[:strings.LastIndexByte(string(text), '\n')+1]
	lines := bufio.NewScanner(strings.NewReader(string(whole)))
	for lines.Scan() {
		row, err := strconv.Atoi(lines.Text())
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, lines.Err()
}

// RunChild runs the client if this process is to be killed, and reports whether it is.
func RunChild() (wasChild bool, err error) {
	text, ok := os.LookupEnv(childEnv)
	if !ok {
		return false, nil
	}
	args := strings.Fields(text)
	if len(args) != 4 {
		return true, fmt.Errorf("metered: %s=%q: want a client, an address, a directory and a number of rows", childEnv, text)
	}
	rows, err := strconv.Atoi(args[3])
	if err != nil {
		return true, err
	}
	err = os.Chdir(args[2])
	if err != nil {
		return true, err
	}
	ask := func(ctx context.Context, row int) (int, error) { return row, post(ctx, args[1], row) }
	for _, c := range clients {
		if c.name == args[0] {
			return true, c.kill(ask, rows)
		}
	}
	return true, fmt.Errorf("metered: unknown client %q", args[0])
}

func post(ctx context.Context, url string, row int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(strconv.Itoa(row)))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func killedWeir(ask asking, rows int) error {
	ctx := context.Background()
	dir, err := files.OpenDir("checkpoints")
	if err != nil {
		return err
	}
	coordinator, err := checkpoint.NewCoordinator(dir, checkpoint.WithInterval(200*time.Millisecond))
	if err != nil {
		return err
	}
	defer func() { _ = coordinator.Close() }()
	db, err := sqlite.OpenDB(ctx, "answers.db")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	answers := sqliteanswers.New(db, "rows")
	err = answers.Migrate(ctx)
	if err != nil {
		return err
	}
	op := asyncop.OrderedWait(sqliteanswers.Blocking(answers, strconv.Itoa, ask), time.Minute, 4*killCalls, asyncop.WithName("rows"),
		asyncop.WithMaxConcurrentCalls(killCalls), asyncop.WithCheckpoints(coordinator, asyncop.State[int, int]{Results: codec.JSON[int]()}))
	err = os.WriteFile("in", []byte(numberedLines(rows)), 0o600)
	if err != nil {
		return err
	}
	in, err := files.OpenLines("in")
	if err != nil {
		return err
	}
	parsed := asyncop.Func(func(_ context.Context, line string, result asyncop.ResultFuture[int]) error {
		row, err := strconv.Atoi(line)
		if err != nil {
			return err
		}
		result.Complete(row)
		return nil
	})
	parse := asyncop.OrderedWait(parsed, time.Minute, killCalls, asyncop.WithName("parse"),
		asyncop.WithCheckpoints(coordinator, asyncop.State[string, int]{}))
	source := checkpoint.NewSource(coordinator, "in", in)
	sink := checkpoint.NewSink(coordinator, "out", files.NewJSONLinesOutput[int]("out"))
	err = coordinator.Start()
	if err != nil {
		return err
	}
	go source.Via(parse).Via(op).To(sink)
	<-coordinator.Ended()
	return coordinator.Wait()
}

func numberedLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// killedLoop writes each row once it is answered, and skips written rows.
func killedLoop(ask asking, rows int) error {
	written, out, err := resume()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	isDone := map[int]bool{}
	for _, row := range written {
		isDone[row] = true
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(killCalls)
	for row := range rows {
		if isDone[row] {
			continue
		}
		group.Go(func() error {
			_, err := ask(context.Background(), row)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			_, err = fmt.Fprintln(out, row)
			return err
		})
	}
	return group.Wait()
}

// killedRill writes the rows in order, behind the written rows.
func killedRill(ask asking, rows int) error {
	written, out, err := resume()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	var left []int
	for row := len(written); row < rows; row++ {
		left = append(left, row)
	}
	answers := rill.OrderedMap(rill.FromSlice(left, nil), killCalls, func(row int) (int, error) { return ask(context.Background(), row) })
	return rill.ForEach(answers, 1, func(row int) error {
		_, err := fmt.Fprintln(out, row)
		return err
	})
}

// resume opens the output without its torn last line, and returns its rows.
func resume() (written []int, out *os.File, err error) {
	written, err = readRows("out")
	if err != nil {
		return nil, nil, err
	}
	var text strings.Builder
	for _, row := range written {
		fmt.Fprintln(&text, row)
	}
	err = os.WriteFile("out", []byte(text.String()), 0o600)
	if err != nil {
		return nil, nil, err
	}
	out, err = os.OpenFile("out", os.O_APPEND|os.O_WRONLY, 0o600)
	return written, out, err
}
