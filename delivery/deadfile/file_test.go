package deadfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/crashfs"
	"github.com/weirflow/weir/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() option { return func(s *settings) { s.logger = slog.New(slog.DiscardHandler) } }

func open(t *testing.T, dir string) *File[string] {
	t.Helper()
	f, err := openWith(dir, codec.JSON[string](), quiet())
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func entry(v string) Entry[string] {
	return Entry[string]{Value: v, Meta: message.Meta{ID: v, LastError: "no such card"}, Cause: store.Exhausted}
}

// received returns what a replay delivers up to its end, acknowledged.
func received(t testing.TB, r *replay[string]) (values []string) {
	t.Helper()
	for {
		ms, err := r.Receive(context.Background(), 10)
		if err == io.EOF || !assert.NoError(t, err) {
			return values
		}
		for _, m := range ms {
			values = append(values, m.Value)
			m.Ack()
		}
	}
}

func replayed(t testing.TB, f *File[string]) []string {
	t.Helper()
	r, err := f.replay()
	if !assert.NoError(t, err) {
		return nil
	}
	values := received(t, r)
	assert.NoError(t, r.Close(context.Background()))
	return values
}

// Law W6: a dead letter would lose the fields that JSON leaves out.
func TestOpen_TypeThatTheCodecChanges(t *testing.T) {
	type order struct{ id string }
	_ = order{}.id
	require.PanicsWithValue(t, "deadfile: Open: codec of deadfile.order: .id: JSON leaves out the unexported field: "+
		"change the type, leave the part out with the tag `json:\"-\"`, or use another codec",
		func() { _, _ = Open(t.TempDir(), codec.JSON[order]()) })
}

func TestAppendAndReplay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "dead")
	f := open(t, dir)
	require.Empty(t, replayed(t, f))
	require.NoError(t, f.Append(t.Context(), entry("a"), entry("b\n")))
	require.NoError(t, f.Append(t.Context(), entry("c")))
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Equal(t, errClosed, f.Append(t.Context(), entry("d")))
	_, err := f.replay()
	require.Equal(t, errClosed, err)

	b, err := os.ReadFile(filepath.Join(dir, "dead.jsonl"))
	require.NoError(t, err)
	lines := strings.Split(string(b), "\n")
	require.Len(t, lines, 4)
	require.Regexp(t, `^\{"batch":0,"meta":\{"id":"a","lastFailure":"20[^"]*Z","lastError":"no such card"\},"cause":"exhausted","payload":"a","schema":"anNvbg==","crc":"[0-9a-f]{8}"\}$`, lines[0])

	f = open(t, dir)
	r, err := f.replay()
	require.NoError(t, err)
	_, err = f.replay()
	require.EqualError(t, err, "deadfile: a replay is open already")
	require.EqualError(t, f.Close(), "deadfile: a replay is open: close it before the file")
	ms, err := r.Receive(t.Context(), 2)
	require.NoError(t, err)
	m := ms[0].Meta()
	require.Equal(t, "no such card", m.LastError)
	require.Equal(t, 1, m.Merges)
	ms[0].Ack()
	require.NoError(t, f.Append(t.Context(), entry("new")), "what dies during the replay")
	require.NoError(t, r.Close(t.Context()))
	require.NoError(t, r.Close(t.Context()))
	require.NoError(t, f.Close())

	f = open(t, dir)
	require.Equal(t, []string{"b\n", "c"}, replayed(t, f), "goes on")
	require.Equal(t, []string{"new"}, replayed(t, f))
	require.Empty(t, replayed(t, f))
	infos, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, infos, 1, "the lock")
}

// emptied is a replay after which nothing is a dead letter that was not one before: what was rejected is taken away.
type emptied struct {
	*replay[string]
	reopen func() error
	closed bool
}

func (e *emptied) Close(ctx context.Context) error {
	err := e.replay.Close(ctx)
	if err == nil && !e.closed {
		e.closed = true
		err = e.reopen()
	}
	return err
}

func TestConformance(t *testing.T) {
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		dir := t.TempDir()
		f := open(t, dir)
		t.Cleanup(func() { _ = f.Close() })
		return deliverytest.Queue[string]{
			Open: func() (delivery.Source[string], error) {
				r, err := f.replay()
				return &emptied{replay: r, reopen: func() error {
					err := f.Close()
					_ = os.Remove(filepath.Join(dir, "dead.jsonl"))
					if err == nil {
						f, err = openWith(dir, codec.JSON[string](), quiet())
					}
					return err
				}}, err
			},
			Put: func(values ...string) error {
				for _, v := range values {
					if err := f.Append(context.Background(), entry(v)); err != nil {
						return err
					}
				}
				return nil
			},
			End:   func() {},
			Keeps: true,
		}
	}, strconv.Itoa)
}

// What was rejected is a dead letter again, with the new error and without its secrets, and in doubt if its call may have taken effect (law X1);
// what cannot be read stays one, as it is.
func TestDeadAgain(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	require.NoError(t, f.Append(t.Context(), entry("rejected"), entry("acked"), entry("doubtful")))
	numbers, err := bodyOf(store.Message{Cause: store.Permanent, Meta: message.Meta{ID: "number"}, Schema: []byte("json"), Payload: []byte("5")})
	require.NoError(t, err)
	require.NoError(t, f.append(t.Context(), [][]byte{numbers}))
	r, err := f.replay()
	require.NoError(t, err)
	ms, err := r.Receive(t.Context(), 10)
	require.NoError(t, err)
	for len(ms) < 3 {
		more, err := r.Receive(t.Context(), 10)
		require.NoError(t, err)
		ms = append(ms, more...)
	}
	ms[0].Reject(errors.New("still no such card: https://ann:s3cret@bank"))
	ms[1].Ack()
	ms[2].Settle(message.Settlement{Kind: message.Rejected, Err: errors.New("no answer"), UnsafeToRepeat: true})
	_, err = r.Receive(t.Context(), 1)
	require.Equal(t, io.EOF, err)
	require.NoError(t, r.Close(t.Context()))
	require.NoError(t, f.Close())

	b, err := os.ReadFile(filepath.Join(dir, "dead.jsonl"))
	require.NoError(t, err)
	got := map[string]line{}
	for raw := range strings.Lines(string(b)) {
		l, err := parseLine([]byte(strings.TrimSpace(raw)))
		require.NoError(t, err)
		got[l.Meta.ID] = l
	}
	require.Len(t, got, 3)
	require.Equal(t, "still no such card: https://ann:xxxxx@bank", got["rejected"].Meta.LastError)
	require.Equal(t, store.UnsafeToRepeat, got["doubtful"].Cause)
	require.True(t, got["doubtful"].Meta.UnsafeToRepeat)
	require.Equal(t, 1, got["rejected"].Meta.Merges)
	require.Equal(t, store.Permanent, got["rejected"].Cause)
	require.Equal(t, store.Undecodable, got["number"].Cause)
	require.Equal(t, "5", string(got["number"].Payload))
	require.Contains(t, got["number"].Meta.LastError, "cannot unmarshal number")
	require.Zero(t, got["number"].Meta.Merges)
	_, err = os.Stat(filepath.Join(dir, "replay.jsonl"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A torn end is cut off without a word to the user; damage is kept, and loud. Either way the rest is there.
func TestTornAndDamaged(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(lines []string) string // three lines, each a batch of its own, with their ends
		want    []string
		damaged func(lines []string) string
		log     string
	}{
		"sound":             {func(l []string) string { return l[0] + l[1] + l[2] }, []string{"a", "b", "c"}, nil, ""},
		"torn":              {func(l []string) string { return l[0] + l[1] + l[2][:20] }, []string{"a", "b"}, nil, "torn by a crash"},
		"torn to zeros":     {func(l []string) string { return l[0] + l[1] + strings.Repeat("\x00", 40) }, []string{"a", "b"}, nil, "torn by a crash"},
		"zeros in front":    {func(l []string) string { return l[0] + l[1] + strings.Repeat("\x00", 40) + l[2][40:] }, []string{"a", "b"}, nil, "torn by a crash"},
		"without its end":   {func(l []string) string { return l[0] + l[1] + strings.TrimSpace(l[2]) }, []string{"a", "b", "c"}, nil, ""},
		"a bit":             {func(l []string) string { return l[0] + strings.Replace(l[1], "exhausted", "exhaustee", 1) + l[2] }, []string{"a", "c"}, func(l []string) string { return strings.Replace(l[1], "exhausted", "exhaustee", 1) }, "is damaged"},
		"a bit of the last": {func(l []string) string { return l[0] + l[1] + strings.Replace(l[2], "exhausted", "exhaustee", 1) }, []string{"a", "b"}, func(l []string) string { return strings.Replace(l[2], "exhausted", "exhaustee", 1) }, "is damaged"},
		"zeros before":      {func(l []string) string { return l[0] + strings.Repeat("\x00", len(l[1])-1) + "\n" + l[2] }, []string{"a", "c"}, func(l []string) string { return strings.Repeat("\x00", len(l[1])-1) + "\n" }, "is damaged"},
		"a line end":        {func(l []string) string { return strings.TrimSpace(l[0]) + l[1] + l[2] }, []string{"c"}, func(l []string) string { return strings.TrimSpace(l[0]) + l[1] }, "is damaged"},
		"empty":             {func([]string) string { return "" }, nil, nil, ""},
	} {
		for _, file := range []string{"dead.jsonl", "replay.jsonl"} {
			t.Run(name+"/"+file, func(t *testing.T) {
				dir := t.TempDir()
				f := open(t, dir)
				for _, v := range []string{"a", "b", "c"} {
					require.NoError(t, f.Append(t.Context(), entry(v)))
				}
				require.NoError(t, f.Close())
				b, err := os.ReadFile(filepath.Join(dir, "dead.jsonl"))
				require.NoError(t, err)
				lines := strings.SplitAfter(string(b), "\n")
				require.NoError(t, os.Remove(filepath.Join(dir, "dead.jsonl")))
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(c.spoil(lines)), 0o600))

				var log strings.Builder
				f, err = openWith(dir, codec.JSON[string](), func(s *settings) { s.logger = slog.New(slog.NewTextHandler(&log, nil)) })
				require.NoError(t, err)
				defer f.Close()
				want := c.want
				if file == "dead.jsonl" {
					require.NoError(t, f.Append(t.Context(), entry("d")))
					want = append(append([]string{}, want...), "d")
				}
				require.Equal(t, want, replayed(t, f))
				damaged, err := os.ReadFile(filepath.Join(dir, "damaged.jsonl"))
				if c.damaged == nil {
					require.ErrorIs(t, err, os.ErrNotExist)
				} else {
					require.NoError(t, err)
					require.Equal(t, c.damaged(lines), string(damaged))
				}
				if c.log == "" {
					require.Empty(t, log.String())
				} else {
					require.Contains(t, log.String(), c.log)
				}
			})
		}
	}
}

var errDisk = errors.New("input/output error")

// faulty returns a file on a disk that can fail, and what fails.
func faulty(t *testing.T) (*crashfs.FS, *File[string], func(op, name string, fault crashfs.Fault)) {
	t.Helper()
	fsys := crashfs.New()
	f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
	require.NoError(t, err)
	return fsys, f, func(op, name string, fault crashfs.Fault) {
		once := true
		fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
			if once && c.Op == op && strings.HasSuffix(c.Name, name) {
				once = false
				return &fault
			}
			return nil
		})
	}
}

// D5: a call that fails leaves nothing, and the next one may succeed.
func TestFullDisk(t *testing.T) {
	for _, part := range []int{0, 1, 30} {
		_, f, fail := faulty(t)
		require.NoError(t, f.Append(t.Context(), entry("a")))
		fail("write", "dead.jsonl", crashfs.Fault{Err: errDisk, Part: part})
		require.ErrorIs(t, f.Append(t.Context(), entry("b")), errDisk)
		require.NoError(t, f.Append(t.Context(), entry("c")))
		require.Equal(t, []string{"a", "c"}, replayed(t, f))
		require.NoError(t, f.Close())
	}
}

// A sync that has failed is not tried again as if nothing had happened: systems forget what they failed to write.
func TestFailedSync(t *testing.T) {
	fsys, f, fail := faulty(t)
	require.NoError(t, f.Append(t.Context(), entry("a")))
	fail("sync", "dead.jsonl", crashfs.Fault{Err: errDisk})
	require.ErrorIs(t, f.Append(t.Context(), entry("b")), errDisk)
	for range 3 {
		require.ErrorIs(t, f.Append(t.Context(), entry("c")), errDisk)
	}
	_, err := f.replay()
	require.ErrorIs(t, err, errDisk)
	require.NoError(t, f.Close())

	f, err = openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
	require.NoError(t, err)
	require.NoError(t, f.Append(t.Context(), entry("d")))
	for disk := range fsys.Images() { // whatever is found after a power cut
		g, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(disk))
		require.NoError(t, err)
		require.Equal(t, []string{"a", "d"}, replayed(t, g))
		require.NoError(t, g.Close())
	}
	require.NoError(t, f.Close())
}

// Where not even that can be taken back, there is no going on either.
func TestFailedTruncate(t *testing.T) {
	fsys, f, _ := faulty(t)
	require.NoError(t, f.Append(t.Context(), entry("a")))
	fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
		switch c.Op {
		case "write":
			return &crashfs.Fault{Err: errDisk, Part: 10}
		case "truncate":
			return &crashfs.Fault{Err: errDisk}
		}
		return nil
	})
	require.ErrorContains(t, f.Append(t.Context(), entry("b")), "cannot be undone")
	fsys.OnCall(nil)
	require.ErrorContains(t, f.Append(t.Context(), entry("c")), "cannot be undone")
	require.NoError(t, f.Close())
	f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, replayed(t, f))
	require.NoError(t, f.Close())
}

// Calls that come while a sync runs share the next one.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys, f, _ := faulty(t)
		syncs := 0
		gate := make(chan struct{})
		fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
			if c.Op == "sync" {
				syncs++
				<-gate
			}
			return nil
		})
		var calls sync.WaitGroup
		appendOne := func(i int) {
			calls.Go(func() { assert.NoError(t, f.Append(context.Background(), entry(strconv.Itoa(i)))) })
		}
		appendOne(0)
		synctest.Wait()
		for i := range 50 {
			appendOne(1 + i)
		}
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		cancelled := make(chan error, 1)
		go func() { cancelled <- f.Append(ctx, entry("cancelled")) }()
		synctest.Wait()
		cancel(stop)
		require.Equal(t, stop, <-cancelled)
		require.Equal(t, stop, f.Append(ctx, entry("too late")))
		close(gate)
		calls.Wait()
		require.Equal(t, 2, syncs)
		require.Len(t, replayed(t, f), 52)
		require.NoError(t, f.Close())
	})
}

// D3: the delay of a message goes on over a restart.
func TestDelayOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := crashfs.New()
		var r *replay[string]
		var f *File[string]
		reopen := func() {
			var err error
			f, err = openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
			require.NoError(t, err)
			r, err = f.replay()
			require.NoError(t, err)
		}
		reopen()
		require.NoError(t, f.Append(t.Context(), entry("a"), entry("b")))
		require.NoError(t, r.Close(t.Context()))
		r, err := f.replay()
		require.NoError(t, err)
		start := time.Now()
		for range 2 {
			ms, err := r.Receive(t.Context(), 1)
			require.NoError(t, err)
			ms[0].Nack(time.Hour)
		}
		synctest.Wait()
		fsys = fsys.Clone() // the process is killed
		require.NoError(t, r.Close(t.Context()))
		require.NoError(t, f.Close())
		time.Sleep(time.Minute)
		reopen()
		require.Equal(t, []string{"a", "b"}, received(t, r))
		require.Equal(t, time.Hour, time.Since(start))
		require.NoError(t, r.Close(t.Context()))
		require.NoError(t, f.Close())
	})
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	_, err := Open(dir, codec.JSON[string]())
	require.ErrorContains(t, err, fmt.Sprintf("deadfile: opening %s: locked by process %d", dir, os.Getpid()))
	require.NoError(t, f.Close())
	open(t, dir)
}

func TestArguments(t *testing.T) {
	require.PanicsWithValue(t, "deadfile: Open: nil codec", func() { _, _ = Open[int](t.TempDir(), nil) })
	f := open(t, t.TempDir())
	require.PanicsWithValue(t, "deadfile: Append: no entry", func() { _ = f.Append(t.Context()) })
	large := strings.Repeat("x", maxLine)
	require.ErrorContains(t, f.Append(t.Context(), entry(large)), "at most")
	require.ErrorIs(t, f.Take(t.Context(), asyncop.Failure[string]{Element: large, Err: errGone}), message.ErrRefused, "law W2")
	require.ErrorContains(t, f.Append(t.Context(), Entry[string]{Meta: message.Meta{Visit: -1}}), "Visit is -1")

	broken, err := Open(t.TempDir(), codec.Func(func([]byte, int) ([]byte, error) { panic("boom") }, nil2))
	require.NoError(t, err)
	require.ErrorContains(t, broken.Append(t.Context(), Entry[int]{}), "panic in user code: boom")
	require.NoError(t, broken.Close())
}

func nil2([]byte) (int, error) { return 0, nil }

// The record of a replay that was finished says nothing about the same dead letter when it comes again.
func TestTheSameDeadLetterAgain(t *testing.T) {
	fsys, f, _ := faulty(t)
	e := entry("a")
	e.Meta.LastFailure = time.Unix(1, 0)
	require.NoError(t, f.Append(t.Context(), e))
	var killed *crashfs.FS
	fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
		if c.Op == "remove" && strings.HasSuffix(c.Name, "replay.done") {
			killed = fsys.Clone()
		}
		return nil
	})
	require.Equal(t, []string{"a"}, replayed(t, f))
	require.NoError(t, f.Close())
	f, err := openWith("/dead", codec.JSON[string](), quiet(), onFS(killed))
	require.NoError(t, err)
	require.NoError(t, f.Append(t.Context(), e))
	require.Equal(t, []string{"a"}, replayed(t, f))
	require.NoError(t, f.Close())
}

// A record that cannot be written is reported, and its messages come again; a dead letter that cannot be stored again stays
// where it is.
func TestRecordFails(t *testing.T) {
	for _, rejects := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fsys, f, fail := faulty(t)
			require.NoError(t, f.Append(t.Context(), entry("a"), entry("b")))
			r, err := f.replay()
			require.NoError(t, err)
			ms, err := r.Receive(t.Context(), 1)
			require.NoError(t, err)
			if rejects {
				fail("write", "dead.jsonl", crashfs.Fault{Err: errDisk})
				ms[0].Reject(errors.New("no"))
			} else {
				fail("write", "replay.done", crashfs.Fault{Err: errDisk})
				ms[0].Ack()
			}
			synctest.Wait()
			_, err = r.Receive(t.Context(), 1)
			require.ErrorIs(t, err, errDisk)
			require.Equal(t, []string{"b"}, received(t, r), "it goes on")
			err = r.Close(t.Context())
			if rejects {
				require.NoError(t, err)
			}
			require.NoError(t, f.Close())
			f, err = openWith("/dead", codec.JSON[string](), quiet(), onFS(fsys))
			require.NoError(t, err)
			again := replayed(t, f)
			require.Equal(t, "a", again[0])
			require.Empty(t, replayed(t, f))
			require.NoError(t, f.Close())
		})
	}
}
