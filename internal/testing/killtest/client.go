package killtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

const (
	permits = 16 // concurrent calls
	ahead   = 20 // elements that a client reads before it asks for the stream's length again
)

// client is a pipeline that reads the stream, calls the service for each element, and
// takes checkpoints.
type client struct {
	settings
	http *http.Client
}

// call runs a client, which first prints a line and resumes from the last checkpoint.
// Order, capacity and calls in flight differ between runs.
func call(s settings) error {
	c := &client{settings: s, http: &http.Client{
		Transport: caller.Transport(&http.Transport{MaxIdleConnsPerHost: 2 * permits}, s.URL+"/accounts/"),
		Timeout:   5 * time.Second,
	}}
	store, err := files.OpenDir(filepath.Join(s.Dir, "checkpoints"))
	if err != nil {
		return err
	}
	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithInterval(30*time.Millisecond),
		checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	source := checkpoint.NewSource(coordinator, "positions", &input{client: c})
	build := asyncop.UnorderedWaitWithRetry[int64, string]
	if rand.IntN(2) == 0 {
		build = asyncop.OrderedWaitWithRetry[int64, string]
	}
	op := build(asyncop.Blocking(c.post), patience, permits+rand.IntN(30),
		strategies.FixedDelay[string](strategies.Unlimited, 5*time.Millisecond).RetryIfException(predicates.HasException),
		asyncop.WithName("calls"), asyncop.WithCheckpoints(coordinator, asyncop.State[int64, string]{
			Overflow: 20, Retries: asyncop.RetryState(rand.IntN(3)),
		}), asyncop.WithMaxConcurrentCalls(permits),
		asyncop.WithBuffer(4), asyncop.WithDrainRetries(),
		asyncop.WithLogger(slog.New(slog.DiscardHandler)),
		asyncop.WithObserver(caller.NewTracker(caller.Config{Window: permits + rand.IntN(60)})))
	sink := checkpoint.NewSink(coordinator, "output", files.NewLineOutput(filepath.Join(s.Dir, outputFile)))
	if err := coordinator.Start(); err != nil {
		return err
	}
	fmt.Println("running")
	source.Via(op).To(sink)
	return errors.Join(coordinator.Wait(), op.Wait(), coordinator.Close())
}

// outputFile has the completed positions, one per line.
const outputFile = "output"

func fail(err error) {
	fmt.Println("FAILED:", err)
	os.Exit(1)
}

// post is the operator's function. It makes an element's requests.
func (c *client) post(ctx context.Context, position int64) (string, error) {
	for _, step := range steps {
		if err := c.postStep(caller.WithStep(ctx, step), position); err != nil {
			return "", err
		}
	}
	return strconv.FormatInt(position, 10), nil
}

func (c *client) postStep(ctx context.Context, position int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/accounts/7",
		strings.NewReader(fmt.Sprintln(position, valueAt(position))))
	if err != nil {
		fail(err)
	}
	resp, err := c.http.Do(req)
	if err == nil {
		defer resp.Body.Close() //nolint:errcheck // the body was read
		err = httpretry.CheckResponse(resp)
	}
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(resp.Body)
	}
	if err == nil && string(answer) != strconv.FormatInt(position, 10) {
		fail(fmt.Errorf("element %d has the answer %q of another one", position, answer))
	}
	refused, is := errors.AsType[*httpretry.StatusError](err)
	switch {
	case errors.Is(err, exactlyonce.ErrInProgress): // too many attempts wait
	case is && refused.StatusCode < http.StatusInternalServerError, errors.Is(err, exactlyonce.ErrStale), errors.Is(err, caller.ErrNoID):
		fail(fmt.Errorf("element %d: %w", position, err))
	}
	return err
}

// input is the positions from 1 to the stream's length.
type input struct {
	client   *client
	position int64
	length   int64 // 0 while unknown
}

func (in *input) Next() (int64, error) {
	if in.length == 0 && in.position%ahead == 0 {
		var err error
		in.length, err = in.client.length(in.position)
		if err != nil {
			return 0, err
		}
	}
	if in.length > 0 && in.position >= in.length {
		return 0, io.EOF
	}
	in.position++
	return in.position, nil
}

func (in *input) Position() []byte { return binary.AppendVarint(nil, in.position) }

func (in *input) Seek(position []byte) error {
	n, size := binary.Varint(position)
	if size != len(position) {
		return fmt.Errorf("%x is no position", position)
	}
	in.position = n
	return nil
}

func (in *input) Close() error { return nil }

// length asks for the stream's length before reading beyond position. It returns 0 while
// that is unknown.
func (c *client) length(position int64) (length int64, err error) {
	resp, err := c.http.Get(c.URL + "/length?position=" + strconv.FormatInt(position, 10))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read
	_, err = fmt.Fscan(resp.Body, &length)
	return length, err
}
