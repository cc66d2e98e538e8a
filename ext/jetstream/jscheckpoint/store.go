package jscheckpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/ext/jetstream/internal/pubs"
	"github.com/weirflow/weir/internal/guard"
)

const (
	root = "weir.checkpoints."

	headerRun    = "Weir-Run"    // the run that published a message
	headerEpoch  = "Weir-Epoch"  // of that run
	headerChunks = "Weir-Chunks" // number of further messages of a checkpoint; 0 if this one has it all
	headerSize   = "Weir-Size"   // of a checkpoint, in bytes

	keep       = 3         // checkpoints
	chunk      = 512 << 10 // bytes of a message
	headerRoom = 4 << 10   // bytes of headers
	maxTries   = 100       // tries of an operation with concurrent changes
	maxName    = 1 << 10   // bytes of the name of a pipeline
)

// StreamConfig returns the config of a stream for stores, on a single server. Replicas,
// MaxBytes, Placement, Description and Metadata may be changed. Many pipelines share a
// stream. The name must not contain dots, spaces or wildcards.
func StreamConfig(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Description:       "checkpoints of weir",
		Subjects:          []string{root + name + ".>"},
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardNew, // a full store must not lose checkpoints
		MaxMsgsPerSubject: 1,
	}
}

type pipelineStore struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string // stream and pipeline, for error messages
	prefix string // of the pipeline's subjects
	run    string
	epoch  uint64

	using  chan struct{} // capacity 1: held by Save
	last   uint64        // the pipeline's last message; guarded by using, as are the next three fields
	newest uint64
	unsure bool     // last and newest may be wrong
	good   []uint64 // numbers that this run has saved or read, and not removed

	mu     sync.Mutex
	fenced bool
	closed bool
}

var _ checkpoint.Store = (*pipelineStore)(nil)

func open(ctx context.Context, js jetstream.JetStream, stream, pipeline string, epoch uint64) (checkpoint.Store, error) {
	ctx = pubs.NoDeadline(ctx)
	if pipeline == "" || len(pipeline) > maxName {
		return nil, fmt.Errorf("jscheckpoint: the name of the pipeline has %d bytes, must have 1 to %d: %.64q", len(pipeline), maxName, pipeline)
	}
	str, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("jscheckpoint: stream %s: %w", stream, err)
	}
	has, want := str.CachedInfo().Config, StreamConfig(stream)
	if len(has.Subjects) != 1 || has.Subjects[0] != want.Subjects[0] || has.MaxMsgsPerSubject != 1 || has.MaxAge != 0 ||
		has.Discard != want.Discard || has.Retention != want.Retention || has.AllowDirect {
		return nil, fmt.Errorf("jscheckpoint: stream %s does not fit: it was not made with StreamConfig, or was changed", stream)
	}
	s := &pipelineStore{
		js: js, stream: str, name: stream + "/" + pipeline, run: nuid.Next(), epoch: epoch,
		prefix: want.Subjects[0][:len(want.Subjects[0])-1] + base64.RawURLEncoding.EncodeToString([]byte(pipeline)) + ".",
		using:  make(chan struct{}, 1), unsure: true,
	}
	if err := s.takeOver(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *pipelineStore) takeOver(ctx context.Context) error {
	for range maxTries {
		owner, err := s.read(ctx, s.prefix+"epoch")
		if err != nil {
			return err
		}
		var before uint64
		if owner != nil {
			before, err = strconv.ParseUint(owner.Header.Get(headerEpoch), 10, 64)
			if err != nil {
				return fmt.Errorf("jscheckpoint: %s: the epoch: %w", s.name, err)
			}
		}
		epoch := cmp.Or(s.epoch, before+1)
		if epoch < before {
			return fmt.Errorf("jscheckpoint: %s: epoch %d, another run has had %d: %w", s.name, epoch, before, checkpoint.ErrFenced)
		}
		last, err := s.read(ctx, s.prefix+">")
		if err != nil {
			return err
		}
		s.last = 0
		if last != nil {
			s.last = last.Sequence
		}
		err = s.publish(ctx, "epoch", nats.Header{headerEpoch: {strconv.FormatUint(epoch, 10)}}, nil)
		if !errors.Is(err, errMoved) {
			if err == nil {
				s.epoch = epoch
			}
			return err
		}
	}
	return fmt.Errorf("jscheckpoint: %s: gave up after %d conflicting takeovers", s.name, maxTries)
}

var errMoved = errors.New("jscheckpoint: another message was published")

// publish publishes a message directly behind the pipeline's last one.
func (s *pipelineStore) publish(ctx context.Context, subject string, h nats.Header, data []byte) error {
	h.Set(headerRun, s.run)
	m := &nats.Msg{Subject: s.prefix + subject, Header: h, Data: data}
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequenceForSubject(s.last, s.prefix+">"))
	if err == nil {
		s.last = ack.Sequence
		return nil
	}
	s.unsure = true
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if pubs.Moved(err) {
		return errMoved
	}
	return fmt.Errorf("jscheckpoint: %s: %w", s.name, err)
}

func (s *pipelineStore) read(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, subject)
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("jscheckpoint: %s: %w", s.name, err)
}

// owned returns the pipeline's last message, or ErrFenced if another run published it
// (law P1).
func (s *pipelineStore) owned(ctx context.Context) (*jetstream.RawStreamMsg, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	last, err := s.read(ctx, s.prefix+">")
	if err != nil {
		return nil, err
	}
	if last == nil || last.Header.Get(headerRun) != s.run {
		s.mu.Lock()
		s.fenced = true
		s.mu.Unlock()
		return nil, s.usable()
	}
	return last, nil
}

func (s *pipelineStore) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return checkpoint.ErrClosed
	case s.fenced:
		return fmt.Errorf("jscheckpoint: %s, epoch %d: %w", s.name, s.epoch, checkpoint.ErrFenced)
	}
	return nil
}

func (s *pipelineStore) Save(ctx context.Context, snapshot *checkpoint.Snapshot) error {
	ctx = pubs.NoDeadline(ctx)
	var b bytes.Buffer
	if _, err := snapshot.WriteTo(&b); err != nil {
		return err
	}
	select {
	case s.using <- struct{}{}:
		defer func() { <-s.using }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := s.usable(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for range maxTries {
		err := s.save(ctx, snapshot.ID, b.Bytes())
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	return fmt.Errorf("jscheckpoint: %s: gave up after %d conflicting saves", s.name, maxTries)
}

// save stores a checkpoint. It returns errMoved if an earlier Save's message has come
// late, or another run has taken over.
func (s *pipelineStore) save(ctx context.Context, id uint64, data []byte) error {
	if s.unsure {
		last, err := s.owned(ctx)
		if err != nil {
			return err
		}
		newest := uint64(0)
		if err := s.each(ctx, func(id uint64, _ *jetstream.RawStreamMsg) { newest = max(newest, id) }); err != nil {
			return err
		}
		s.last = last.Sequence
		s.newest = newest
		s.unsure = false
	}
	if id <= s.newest {
		return s.again(ctx, id, data)
	}
	h := nats.Header{headerSize: {strconv.Itoa(len(data))}, headerChunks: {"0"}}
	if size := s.chunkSize(); len(data) > size {
		n := 0
		for piece := range slices.Chunk(data, size) {
			if err := s.publish(ctx, fmt.Sprintf("chunk.%d.%d", id, n), nats.Header{}, piece); err != nil {
				return err
			}
			n++
		}
		h.Set(headerChunks, strconv.Itoa(n))
		data = nil
	}
	// The checkpoint exists once this message is stored.
	if err := s.publish(ctx, fmt.Sprintf("checkpoint.%d", id), h, data); err != nil {
		return err
	}
	s.newest = id
	s.good = append(s.good, id)
	if err := s.tidy(ctx); err != nil {
		guard.Logger(nil).Warn("weir: old checkpoints could not be removed", "pipeline", s.name, "error", err)
	}
	return nil
}

func (s *pipelineStore) chunkSize() int {
	return min(chunk, max(1<<10, int(s.js.Conn().MaxPayload())-headerRoom))
}

// again returns nil if the same checkpoint is stored, else the error for a taken number.
func (s *pipelineStore) again(ctx context.Context, id uint64, data []byte) error {
	if _, err := s.owned(ctx); err != nil {
		return err
	}
	if id == s.newest {
		stored, err := s.bytes(ctx, id)
		if _, damaged := errors.AsType[*checkpoint.CorruptError](err); err != nil && !damaged {
			return err
		}
		if err == nil && bytes.Equal(stored, data) {
			return nil
		}
	}
	return &checkpoint.NumberError{Checkpoint: id, Newest: s.newest}
}

// stored returns the numbers of the checkpoints, and the numbers that have chunks, in
// order. Concurrent changes by other runs may be missing.
func (s *pipelineStore) stored(ctx context.Context) (ids, chunks []uint64, err error) {
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(s.prefix+">"))
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("jscheckpoint: %s: %w", s.name, err)
	}
	for subject := range info.State.Subjects {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(subject, s.prefix), ".")
		number, _, _ := strings.Cut(rest, ".")
		id, err := strconv.ParseUint(number, 10, 64)
		switch {
		case kind == "epoch":
		case err != nil:
			return nil, nil, fmt.Errorf("jscheckpoint: %s: the subject %s is not of this store", s.name, subject)
		case kind == "checkpoint":
			ids = append(ids, id)
		default:
			chunks = append(chunks, id)
		}
	}
	slices.Sort(ids)
	slices.Sort(chunks)
	return ids, slices.Compact(chunks), nil
}

// tidy removes checkpoints older than the last whole ones, and remains of failed ones, of
// earlier runs too, since a run may save few (law W3).
func (s *pipelineStore) tidy(ctx context.Context) error {
	ids, chunks, err := s.stored(ctx)
	if err != nil || len(ids) <= keep {
		return err
	}
	var good []uint64
	for _, id := range slices.Backward(ids) {
		if len(good) == keep {
			break
		}
		if !slices.Contains(s.good, id) {
			_, err := s.Load(ctx, id)
			if _, damaged := errors.AsType[*checkpoint.CorruptError](err); damaged {
				continue
			}
			if err != nil {
				return err
			}
		}
		good = append(good, id)
	}
	s.good = good
	if len(good) < keep {
		return nil
	}
	oldest := good[keep-1]
	var errs []error
	for _, of := range []struct {
		ids     []uint64
		subject string
	}{{ids, "checkpoint.%d"}, {chunks, "chunk.%d.*"}} { // without the first, the second is not used
		for _, id := range of.ids {
			if id < oldest {
				errs = append(errs, s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+fmt.Sprintf(of.subject, id))))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *pipelineStore) Load(ctx context.Context, id uint64) (*checkpoint.Snapshot, error) {
	ctx = pubs.NoDeadline(ctx)
	if _, err := s.owned(ctx); err != nil {
		return nil, err
	}
	b, err := s.bytes(ctx, id)
	if err != nil {
		return nil, err
	}
	snapshot, err := checkpoint.ReadSnapshot(bytes.NewReader(b), int64(len(b)))
	if damage, ok := errors.AsType[*checkpoint.CorruptError](err); ok {
		damage.Checkpoint, damage.Path = id, s.name
		return nil, damage
	}
	if err == nil && snapshot.ID != id {
		return nil, s.corrupt(id, fmt.Sprintf("it is checkpoint %d", snapshot.ID))
	}
	return snapshot, err
}

func (s *pipelineStore) corrupt(id uint64, reason string) error {
	return &checkpoint.CorruptError{Path: s.name, Checkpoint: id, Reason: reason}
}

func (s *pipelineStore) bytes(ctx context.Context, id uint64) ([]byte, error) {
	m, err := s.read(ctx, s.prefix+fmt.Sprintf("checkpoint.%d", id))
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fmt.Errorf("%w: checkpoint %d of %s", checkpoint.ErrNotFound, id, s.name)
	}
	chunks, err := strconv.Atoi(m.Header.Get(headerChunks))
	if err != nil {
		return nil, s.corrupt(id, "the header "+headerChunks+" is no number")
	}
	if chunks == 0 {
		return m.Data, nil
	}
	var b []byte
	for i := range chunks {
		piece, err := s.read(ctx, s.prefix+fmt.Sprintf("chunk.%d.%d", id, i))
		if err != nil {
			return nil, err
		}
		if piece == nil {
			if still, err := s.read(ctx, s.prefix+fmt.Sprintf("checkpoint.%d", id)); err != nil || still == nil {
				return nil, cmp.Or(err, fmt.Errorf("%w: checkpoint %d of %s", checkpoint.ErrNotFound, id, s.name)) // removed meanwhile
			}
			return nil, s.corrupt(id, fmt.Sprintf("part %d of %d is missing", i, chunks))
		}
		b = append(b, piece.Data...)
	}
	return b, nil
}

func (s *pipelineStore) List(ctx context.Context) ([]checkpoint.Entry, error) {
	ctx = pubs.NoDeadline(ctx)
	if _, err := s.owned(ctx); err != nil {
		return nil, err
	}
	var entries []checkpoint.Entry
	err := s.each(ctx, func(id uint64, m *jetstream.RawStreamMsg) {
		size, err := strconv.ParseInt(m.Header.Get(headerSize), 10, 64)
		if err != nil {
			size = int64(len(m.Data)) // damaged, as Load will find
		}
		entries = append(entries, checkpoint.Entry{ID: id, Size: size})
	})
	slices.SortFunc(entries, func(a, b checkpoint.Entry) int { return cmp.Compare(a.ID, b.ID) })
	return entries, err
}

// each calls f for each checkpoint, in the order of publication. It finds the newest one
// despite concurrent changes.
func (s *pipelineStore) each(ctx context.Context, f func(id uint64, m *jetstream.RawStreamMsg)) error {
	checkpoints := s.prefix + "checkpoint."
	for next := uint64(1); ; {
		m, err := s.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(checkpoints+"*"))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return nil
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("jscheckpoint: %s: %w", s.name, err)
		}
		id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, checkpoints), 10, 64)
		if err != nil {
			return fmt.Errorf("jscheckpoint: %s: the subject %s is not of this store", s.name, m.Subject)
		}
		f(id, m)
		next = m.Sequence + 1
	}
}

// Close implements [checkpoint.Store]. The connection stays open.
func (s *pipelineStore) Close() error {
	s.using <- struct{}{}
	defer func() { <-s.using }()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
