package blobcheckpoint

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/partitions"
)

const (
	defaultKeepLast = 3
	maxLate         = 3 // writes that may end after they were abandoned
)

// Stores open the stores of pipelines in a bucket. Safe for concurrent use.
type Stores struct {
	bucket *blob.Bucket
	prefix string
	keep   int
}

var _ partitions.Stores = (*Stores)(nil)

// Option changes a setting of [New].
type Option func(*Stores)

// KeepLast sets how many of a pipeline's newest checkpoints are kept; the default is 3.
// It panics if n < 1.
func KeepLast(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("blobcheckpoint: KeepLast: %d is less than 1", n))
	}
	return func(s *Stores) { s.keep = n }
}

// New returns the stores in a bucket. The names of their objects begin with prefix and a
// slash, or with the pipeline if prefix is empty. The bucket stays the caller's. It
// panics if bucket is nil.
func New(bucket *blob.Bucket, prefix string, opts ...Option) *Stores {
	if bucket == nil {
		panic("blobcheckpoint: New: nil bucket")
	}
	prefix = strings.TrimSuffix(prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	s := &Stores{bucket: bucket, prefix: prefix, keep: defaultKeepLast}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// header begins an object: the epoch, the random name of the store that wrote it, and the
// number of the checkpoint that follows, or 0 if it only records that the store was
// opened. Its length is fixed.
const header = "weir checkpoint, epoch %020d, store %26s, number %020d\n"

var headerSize = len(fmt.Sprintf(header, 0, "", 0))

type object struct {
	seq        uint64
	size       int64
	epoch      uint64
	store      string
	checkpoint uint64 // 0 if it has no checkpoint
}

// Open implements [partitions.Stores]. The store takes the pipeline over from all earlier
// stores. The error matches [checkpoint.ErrFenced] if a store was opened for a higher
// epoch.
func (s *Stores) Open(ctx context.Context, pipeline string, epoch uint64) (checkpoint.Store, error) {
	if pipeline == "" {
		return nil, errors.New("blobcheckpoint: the name of a pipeline is empty")
	}
	o := &store{Stores: s, pipeline: pipeline, dir: s.prefix + url.PathEscape(pipeline) + "/", epoch: epoch, name: rand.Text()}
	if err := o.claim(ctx); err != nil {
		return nil, fmt.Errorf("blobcheckpoint: opening %q: %w", pipeline, err)
	}
	return o, nil
}

type store struct {
	*Stores
	pipeline string
	dir      string // of its objects, with a slash
	epoch    uint64
	name     string

	mu     sync.Mutex // held by calls
	next   uint64
	newest uint64
	known  []object // existing objects, in order
	unsure bool     // the last write failed, but may have stored its object
	fenced bool
	closed bool
}

// claim takes the next number, which fences all other stores.
func (o *store) claim(ctx context.Context) error {
	for {
		objects, err := o.objects(ctx)
		if err != nil {
			return err
		}
		o.next = 1
		o.newest = 0
		o.known = objects
		for _, x := range objects {
			if x.epoch > o.epoch {
				return fmt.Errorf("it was opened for epoch %d, which is higher than %d: %w", x.epoch, o.epoch, checkpoint.ErrFenced)
			}
			o.next, o.newest = x.seq+1, max(o.newest, x.checkpoint)
		}
		mine := o.next
		switch err := o.write(ctx, nil, 0); {
		case gcerrors.Code(err) == gcerrors.FailedPrecondition:
			continue // another store was quicker
		case err != nil:
			return err
		}
		overwrites := o.put(ctx, mine, nil, 0) == nil
		last, err := o.last(ctx)
		switch {
		case err != nil:
			return err
		case last != mine: // another store was quicker, and has removed objects
			continue
		case overwrites:
			return errOverwrites
		}
		return nil
	}
}

var errOverwrites = errors.New("the storage overwrites an object although it was asked not to (If-None-Match): it cannot keep checkpoints")

func (o *store) put(ctx context.Context, seq uint64, snapshot []byte, id uint64) error {
	content := append(fmt.Appendf(nil, header, o.epoch, o.name, id), snapshot...)
	return o.bucket.WriteAll(ctx, o.key(seq), content, &blob.WriterOptions{IfNotExist: true, ContentType: "application/octet-stream"})
}

// write writes the next object, unless its number is taken.
func (o *store) write(ctx context.Context, snapshot []byte, id uint64) error {
	err := o.put(ctx, o.next, snapshot, id)
	o.unsure = err != nil
	if err == nil {
		o.wrote(id)
	}
	return err
}

func (o *store) wrote(id uint64) {
	o.known = append(o.known, object{seq: o.next, checkpoint: id})
	o.next = o.next + 1
	o.newest = max(o.newest, id)
	o.unsure = false
}

func (o *store) key(seq uint64) string { return fmt.Sprintf("%s%020d", o.dir, seq) }

// list calls f for each object, in order.
func (o *store) list(ctx context.Context, f func(seq uint64, size int64) error) error {
	for it := o.bucket.List(&blob.ListOptions{Prefix: o.dir}); ; {
		x, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		seq, err := strconv.ParseUint(strings.TrimPrefix(x.Key, o.dir), 10, 64)
		if err != nil {
			continue // not ours
		}
		if err := f(seq, x.Size); err != nil {
			return err
		}
	}
}

func (o *store) last(ctx context.Context) (last uint64, err error) {
	err = o.list(ctx, func(seq uint64, _ int64) error { last = seq; return nil })
	return last, err
}

// objects returns all objects, in order. Owners number checkpoints upwards. So a
// checkpoint that is not lower than a later one does not count: a stale owner wrote it
// where objects of a later owner had been removed, before it noticed (law P1).
func (o *store) objects(ctx context.Context) (all []object, err error) {
	err = o.list(ctx, func(seq uint64, size int64) error {
		x, err := o.object(ctx, seq, size)
		if gcerrors.Code(err) == gcerrors.NotFound {
			return nil // removed since
		}
		all = append(all, x)
		return err
	})
	lowest := uint64(0) // of the later objects; 0 if they have no checkpoint
	for i := len(all) - 1; i >= 0; i-- {
		switch x := &all[i]; {
		case lowest != 0 && x.checkpoint >= lowest:
			x.checkpoint = 0
		case x.checkpoint != 0:
			lowest = x.checkpoint
		}
	}
	return all, err
}

func (o *store) object(ctx context.Context, seq uint64, size int64) (x object, err error) {
	r, err := o.bucket.NewRangeReader(ctx, o.key(seq), 0, int64(headerSize), nil)
	if err != nil {
		return x, err
	}
	b, err := io.ReadAll(r)
	err = errors.Join(err, r.Close())
	if err != nil {
		return x, err
	}
	x = object{seq: seq, size: size - int64(headerSize)}
	_, err = fmt.Sscanf(string(b), header, &x.epoch, &x.store, &x.checkpoint)
	if err != nil {
		return x, fmt.Errorf("%s does not begin as an object of weir: %.100q", o.key(seq), b)
	}
	return x, nil
}

func (o *store) read(ctx context.Context, seq uint64) ([]byte, error) {
	b, err := o.bucket.ReadAll(ctx, o.key(seq))
	return b[min(headerSize, len(b)):], err
}

// do calls f if the store is open and ctx has not ended, and explains its error.
func (o *store) do(ctx context.Context, doing string, f func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return checkpoint.ErrClosed
	case o.fenced:
		return fmt.Errorf("blobcheckpoint: %q: %w", o.pipeline, checkpoint.ErrFenced)
	case ctx.Err() != nil:
		return fmt.Errorf("blobcheckpoint: %q: %s: %w", o.pipeline, doing, context.Cause(ctx))
	}
	err := f()
	o.fenced = errors.Is(err, checkpoint.ErrFenced)
	if _, wrong := errors.AsType[*checkpoint.NumberError](err); err == nil || wrong {
		return err
	}
	return fmt.Errorf("blobcheckpoint: %q: %s: %w", o.pipeline, doing, err)
}

func (o *store) Save(ctx context.Context, s *checkpoint.Snapshot) error {
	if err := s.Validate(); err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		return err
	}
	return o.do(ctx, fmt.Sprintf("saving checkpoint %d", s.ID), func() error {
		for range maxLate {
			there, err := o.settle(ctx, s.ID, b.Bytes())
			switch {
			case err != nil:
				return err
			case there:
			case s.ID <= o.newest:
				return &checkpoint.NumberError{Checkpoint: s.ID, Newest: o.newest}
			default:
				err = o.write(ctx, b.Bytes(), s.ID) // it may be stored despite an error
			}
			if gcerrors.Code(err) == gcerrors.FailedPrecondition {
				continue // settle finds out whose it is: an earlier write may have been late
			}
			if err == nil {
				err = o.mine(ctx)
			}
			if err == nil {
				o.removeOld(ctx)
			}
			return err
		}
		return fmt.Errorf("object %d is there when it is written, and is not when it is read", o.next)
	})
}

// settle reports whether the last Save has stored its checkpoint although it returned an
// error.
func (o *store) settle(ctx context.Context, id uint64, snapshot []byte) (there bool, err error) {
	if o.unsure {
		x, err := o.object(ctx, o.next, 0)
		switch {
		case gcerrors.Code(err) == gcerrors.NotFound:
		case err != nil:
			return false, err
		case x.store != o.name:
			return false, checkpoint.ErrFenced
		default:
			o.wrote(x.checkpoint)
		}
	}
	i := slices.IndexFunc(o.known, func(x object) bool { return x.checkpoint == id })
	if id != o.newest || i < 0 {
		return false, nil
	}
	stored, err := o.read(ctx, o.known[i].seq)
	return bytes.Equal(stored, snapshot), err
}

// mine returns an error that matches ErrFenced if there are objects of a later store (law
// P1).
func (o *store) mine(ctx context.Context) error {
	last, err := o.last(ctx)
	if err == nil && last >= o.next {
		var x object
		x, err = o.object(ctx, last, 0)
		if err == nil && x.store != o.name {
			err = checkpoint.ErrFenced
		}
	}
	return err
}

// removeOld removes all objects before the kept checkpoints. If that fails, they stay
// until the pipeline is opened again.
func (o *store) removeOld(ctx context.Context) {
	kept, oldest := 0, len(o.known)
	for ; oldest > 0 && kept < o.keep; oldest-- {
		if o.known[oldest-1].checkpoint != 0 {
			kept++
		}
	}
	for _, x := range o.known[:oldest] {
		_ = o.bucket.Delete(ctx, o.key(x.seq))
	}
	o.known = slices.Delete(o.known, 0, oldest)
}

func (o *store) Load(ctx context.Context, id uint64) (s *checkpoint.Snapshot, err error) {
	err = o.do(ctx, fmt.Sprintf("loading checkpoint %d", id), func() error {
		if err := o.mine(ctx); err != nil {
			return err
		}
		objects, err := o.objects(ctx)
		if err != nil {
			return err
		}
		for _, x := range objects {
			if x.checkpoint != id || id == 0 {
				continue
			}
			b, err := o.read(ctx, x.seq)
			if err != nil {
				return err
			}
			s, err = checkpoint.ReadSnapshot(bytes.NewReader(b), int64(len(b)))
			if damage, is := errors.AsType[*checkpoint.CorruptError](err); is {
				damage.Path, damage.Checkpoint = o.key(x.seq), id
			}
			if err == nil && s.ID != id {
				return &checkpoint.CorruptError{Path: o.key(x.seq), Checkpoint: id, Reason: fmt.Sprintf("it has the number %d", s.ID)}
			}
			return err
		}
		return fmt.Errorf("%w: checkpoint %d", checkpoint.ErrNotFound, id)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (o *store) List(ctx context.Context) (entries []checkpoint.Entry, err error) {
	err = o.do(ctx, "listing", func() error {
		if err := o.mine(ctx); err != nil {
			return err
		}
		objects, err := o.objects(ctx)
		for _, x := range objects {
			if x.checkpoint != 0 {
				entries = append(entries, checkpoint.Entry{ID: x.checkpoint, Size: x.size})
			}
		}
		return err
	})
	return entries, err
}

func (o *store) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	return nil
}
