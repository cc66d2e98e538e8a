package deadfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/redeliver"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/vfs"
	"github.com/weirflow/weir/message"
)

// replay is what [File.Replay] returns.
type replay[T any] struct {
	f       *File[T]
	decoder *decoder.Decoder[T]
	source  *redeliver.Source[item[T]]
	ctx     context.Context //nolint:containedctx // ends with Close
	cancel  context.CancelFunc
	ends    sync.WaitGroup // read and record

	mu       sync.Mutex // guards what follows
	left     int        // messages that were read and have no settlement in settled, or behind it
	settled  []settlement
	read     bool          // all of the file
	failed   error         // that is to be reported by Receive or Close
	complete bool          // every settlement so far is recorded
	wake     chan struct{} // capacity 1: settled is not empty, or it ends
	closed   bool
}

// item is a line that is replayed.
type item[T any] struct {
	value T
	line  line
	mark  mark
	due   time.Time // it was nacked before; zero: at any time
}

// mark names a line: a hash, since the places of lines change when a damaged file is
// repaired.
type mark [12]byte

func markOf(raw []byte) mark {
	sum := sha256.Sum256(raw)
	return mark(sum[:12])
}

// settlement is what is to be recorded.
type settlement struct {
	mark mark
	due  time.Time // not done: nacked until then
	dead []byte    // the body of the line of a dead letter that it becomes again
}

// Replay takes the dead letters out of the file, and returns them as a source of
// messages; new dead letters go to a new file. If there are dead letters that an earlier
// Replay has not finished, it returns those instead. Only one Replay can be open at a
// time; close it before the file.
//
// The source delivers the contents of the file when it was made, with Merges increased
// and without visits and attempts, and ends when all of it is done. An acknowledged
// message is not delivered again. A rejected message becomes a dead letter again, with
// the error of the rejection. A nacked message is redelivered after its delay; a Replay
// after a Close or a crash continues where this one was. If a power cut undoes an
// acknowledgement, the message is redelivered, with the same id (law D1). A Receive
// reports a recorded error once. When all is done, Close removes the dead letters that
// were replayed; it ignores its context, since it waits only for the disk.
//
// A dead letter that the codec cannot read stays a dead letter, with the cause
// [store.Undecodable].
func (f *File[T]) Replay() (delivery.Source[T], error) {
	r, err := f.replay()
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (f *File[T]) replay() (*replay[T], error) {
	f.using <- struct{}{}
	defer func() { <-f.using }()
	f.mu.Lock()
	closed := f.closed
	f.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case f.broken != nil:
		return nil, f.broken
	case f.replays:
		return nil, errors.New("deadfile: a replay is open already")
	}
	r, err := f.newReplay()
	if err != nil {
		return nil, fmt.Errorf("deadfile: replay: %w", err)
	}
	f.replays = true
	return r, nil
}

func (f *File[T]) newReplay() (*replay[T], error) {
	if err := f.takeOut(); err != nil {
		return nil, err
	}
	marks, err := f.marks()
	if err != nil {
		return nil, err
	}
	file, err := f.fs.OpenFile(f.path(replayName), os.O_RDONLY, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r := &replay[T]{f: f, decoder: decoder.New("deadfile", f.codec), complete: true, wake: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	items := make(chan item[T])
	r.source = redeliver.New(items, f.clock, redeliver.Hooks[item[T]]{
		Meta:    func(it item[T]) *message.Meta { return &it.line.Meta },
		Wait:    func(it item[T]) time.Duration { return it.due.Sub(f.clock.Now()) },
		Settled: r.settle,
	})
	r.ends.Go(func() {
		defer close(items)
		r.readAll(file, marks, items)
	})
	r.ends.Go(r.record)
	return r, nil
}

// takeOut gives the file of dead letters the name under which it is replayed, unless an
// earlier one has it.
func (f *File[T]) takeOut() error {
	if _, err := f.fs.Stat(f.path(replayName)); err == nil {
		return f.repair(replayName)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.removeIfThere(doneName); err != nil { // of a replay that was finished
		return err
	}
	if _, err := f.fs.Stat(f.path(deadName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := f.closeDead(); err != nil {
		return err
	}
	if err := f.fs.Rename(f.path(deadName), f.path(replayName)); err != nil {
		return err
	}
	if err := f.fs.SyncDir(f.dir); err != nil { // before there is a new file of the old name
		f.broken = fmt.Errorf("deadfile: %w", err)
		return err
	}
	return nil
}

func (f *File[T]) removeIfThere(name string) error {
	err := f.fs.Remove(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, f.fs.SyncDir(f.dir))
}

// marks reads what an earlier replay has recorded: until when a line waits; zero: it is
// done. A line of the record that was torn is passed over, and its message comes again.
func (f *File[T]) marks() (map[mark]time.Time, error) {
	all := make(map[mark]time.Time)
	file, err := f.fs.OpenFile(f.path(doneName), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	err = chunks(file, func(c chunk) error {
		if m, due, ok := parseMark(c.raw); ok && c.ended {
			all[m] = due
		}
		return nil
	})
	return all, err
}

// appendMark appends a line of the record: the mark, and for a message that waits the
// time until when, in nanoseconds.
func appendMark(dst []byte, m mark, due time.Time) []byte {
	dst = hex.AppendEncode(dst, m[:])
	if !due.IsZero() {
		dst = strconv.AppendInt(append(dst, ' '), due.UnixNano(), 10)
	}
	return append(dst, '\n')
}

func parseMark(raw []byte) (m mark, due time.Time, ok bool) {
	name, wait, waits := strings.Cut(string(raw), " ")
	if b, err := hex.DecodeString(name); err != nil || len(b) != len(m) {
		return mark{}, time.Time{}, false
	} else {
		m = mark(b)
	}
	if waits {
		n, err := strconv.ParseInt(wait, 10, 64)
		if err != nil {
			return mark{}, time.Time{}, false
		}
		due = time.Unix(0, n)
	}
	return m, due, true
}

// readAll hands over what is not done. file may be nil.
func (r *replay[T]) readAll(file vfs.File, marks map[mark]time.Time, items chan<- item[T]) {
	if file != nil {
		defer func() { _ = file.Close() }()
		err := chunks(file, func(c chunk) error {
			l, err := parseLine(c.raw)
			if err != nil { // repaired before
				return fmt.Errorf("%s at %d: %w", r.f.path(replayName), c.offset, err)
			}
			it := item[T]{line: l, mark: markOf(c.raw)}
			due, marked := marks[it.mark]
			if marked && due.IsZero() {
				return nil
			}
			it.due = due
			r.mu.Lock()
			r.left++ // before Receive has it, which Close may not wait for
			r.mu.Unlock()
			if it.value, err = r.decoder.Decode(l.Schema, l.Payload); err != nil {
				r.undecodable(it, err)
				return nil
			}
			failed.Afresh(&it.line.Meta, r.f.clock.Now())
			select {
			case items <- it:
				return nil
			case <-r.ctx.Done():
				return r.ctx.Err()
			}
		})
		if err != nil {
			if r.ctx.Err() == nil {
				r.fail(fmt.Errorf("deadfile: replay: %w", err))
			}
			return
		}
	}
	r.mu.Lock()
	r.read = true
	r.mu.Unlock()
}

// undecodable lets a dead letter stay one (law D5), as it is.
func (r *replay[T]) undecodable(it item[T], reason error) {
	r.f.logger.Error("deadfile: a dead letter cannot be read, and is kept",
		slog.String("id", it.line.Meta.ID), slog.Any("error", reason))
	it.line.Cause, it.line.Meta.LastError = store.Undecodable, guard.Text(reason)
	r.dieAgain(it)
}

// dieAgain records a message as a dead letter.
func (r *replay[T]) dieAgain(it item[T]) {
	body, err := bodyOf(it.line.Message)
	if err != nil { // it was a line before, but its error is larger now
		it.line.Meta.LastError = ""
		body, err = bodyOf(it.line.Message)
	}
	if err != nil {
		r.fail(err)
		return
	}
	r.add(settlement{mark: it.mark, dead: body})
}

// latest is the last time that a mark can have.
var latest = time.Unix(0, math.MaxInt64)

// settle takes a settlement. It is called from any goroutine.
func (r *replay[T]) settle(it item[T], v message.Settlement) {
	switch v.Kind {
	case message.Done, message.HandedOver:
		r.add(settlement{mark: it.mark})
	case message.Rejected:
		it.line.Cause = settle.Rejected(&it.line.Meta, v, r.f.clock.Now())
		r.dieAgain(it)
	case message.Released, message.Failed:
		if v.Delay > 0 { // law D3, over a restart
			due := r.f.clock.Now().Add(v.Delay)
			if due.After(latest) {
				due = latest
			}
			r.add(settlement{mark: it.mark, due: due})
		}
	}
}

func (r *replay[T]) add(v settlement) {
	r.mu.Lock()
	r.settled = append(r.settled, v)
	if v.due.IsZero() {
		r.left--
	}
	r.mu.Unlock()
	settle.Wake(r.wake)
}

func (r *replay[T]) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complete = false
	if r.failed == nil {
		r.failed = err
	}
}

// record writes settlements until Close, and what is left then.
func (r *replay[T]) record() {
	var to vfs.File // the record; nil: to be opened
	for ended := false; !ended; {
		select {
		case <-r.wake:
		case <-r.ctx.Done():
			ended = true
		}
		r.mu.Lock()
		settlements := r.settled
		r.settled = nil
		r.mu.Unlock()
		if len(settlements) == 0 {
			continue
		}
		var err error
		if to, err = r.write(to, settlements); err != nil {
			r.fail(err)
		}
	}
	if to != nil {
		if err := errors.Join(to.Sync(), to.Close()); err != nil {
			r.fail(fmt.Errorf("deadfile: replay: %w", err))
		}
	}
}

// write records settlements. A dead letter is durable before it is done (law D1). What
// cannot be recorded comes again from the next replay. It returns the record, or nil if
// that is to be opened again.
func (r *replay[T]) write(to vfs.File, settlements []settlement) (vfs.File, error) {
	var dead [][]byte
	for _, v := range settlements {
		if v.dead != nil {
			dead = append(dead, v.dead)
		}
	}
	var died error
	if len(dead) > 0 {
		died = r.f.append(context.WithoutCancel(r.ctx), dead)
	}
	var b []byte
	if to == nil {
		b = append(b, '\n') // ends a line that was torn
	}
	for _, v := range settlements {
		if v.dead == nil || died == nil {
			b = appendMark(b, v.mark, v.due)
		}
	}
	err := r.openRecord(&to)
	if err == nil {
		_, err = to.Write(b)
	}
	if err == nil {
		return to, died
	}
	if to != nil {
		err = errors.Join(err, to.Close())
	}
	return nil, errors.Join(died, fmt.Errorf("deadfile: replay: %w", err))
}

func (r *replay[T]) openRecord(to *vfs.File) error {
	if *to != nil {
		return nil
	}
	file, err := r.f.fs.OpenFile(r.f.path(doneName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, filePerm)
	if err != nil {
		return err
	}
	*to = file
	return r.f.fs.SyncDir(r.f.dir)
}

// Receive implements [delivery.Source]. A recorded error is reported once.
func (r *replay[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	if err := r.takeFailure(); err != nil {
		return nil, err
	}
	items, err := r.source.Receive(ctx, n)
	if err == io.EOF { //nolint:errorlint // the source's own, not wrapped
		if failed := r.takeFailure(); failed != nil {
			return nil, failed
		}
	}
	if err != nil {
		return nil, err
	}
	messages := make([]message.Message[T], len(items))
	for i, m := range items {
		messages[i] = message.With(m, m.Value.value)
	}
	return messages, nil
}

func (r *replay[T]) takeFailure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.failed
	r.failed = nil
	return err
}

// isComplete reports whether all of the file is done, and recorded.
func (r *replay[T]) isComplete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read && r.left == 0 && r.complete && len(r.settled) == 0
}

// Close implements [delivery.Source]: it records what was settled. When all is done, it
// removes the dead letters that were replayed. It ignores ctx, since it waits only for
// the disk.
func (r *replay[T]) Close(context.Context) error {
	r.mu.Lock()
	again := r.closed
	r.closed = true
	r.mu.Unlock()
	if again {
		return nil
	}
	_ = r.source.Close() // isComplete knows what is not done
	r.cancel()
	r.ends.Wait()
	err := r.takeFailure()
	r.f.using <- struct{}{}
	defer func() { <-r.f.using }()
	r.f.replays = false
	if r.isComplete() && err == nil {
		// The dead letters first: without the record they would all come again.
		err = r.f.removeIfThere(replayName)
		if err == nil {
			err = r.f.removeIfThere(doneName)
		}
		if err != nil {
			err = fmt.Errorf("deadfile: replay: %w", err)
		}
	}
	return err
}
