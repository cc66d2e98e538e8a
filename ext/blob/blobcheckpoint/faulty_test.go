package blobcheckpoint_test

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

var errTrial = errors.New("trial")

// faulty is a driver above a bucket. A call can be made to fail before or after it takes
// effect.
type faulty struct {
	driver.Bucket // no other methods are called
	bucket        *blob.Bucket
	overwrites    bool // writes overwrite existing objects
	delays        bool // a failed write takes effect later, before the next write

	mu   sync.Mutex
	in   int          // the call that fails, counted from 1, or 0
	late func() error // a write that was given up
}

func openFaulty(b *blob.Bucket) (*blob.Bucket, *faulty) {
	f := &faulty{bucket: b}
	return blob.NewBucket(f), f
}

func (f *faulty) fail(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.in = n
}

func (f *faulty) fails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.in--
	return f.in == 0
}

// call makes a call of two steps: to reach the server, and to receive its answer.
func (f *faulty) call(do func() error) error {
	if f.fails() {
		return errTrial
	}
	err := do()
	if f.fails() {
		return errTrial
	}
	return err
}

func (*faulty) ErrorCode(err error) gcerrors.ErrorCode { return gcerrors.Code(err) }
func (*faulty) ErrorAs(error, any) bool                { return false }
func (f *faulty) Close() error                         { return f.bucket.Close() }

func (f *faulty) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	page := &driver.ListPage{}
	err := f.call(func() error {
		token := o.PageToken
		if token == nil {
			token = blob.FirstPageToken
		}
		objects, next, err := f.bucket.ListPage(ctx, token, 2, &blob.ListOptions{Prefix: o.Prefix})
		for _, x := range objects {
			page.Objects = append(page.Objects, &driver.ListObject{Key: x.Key, Size: x.Size})
		}
		page.NextPageToken = next
		return err
	})
	return page, err
}

type reader struct{ *blob.Reader }

func (r reader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.Size()}
}
func (reader) As(any) bool { return false }

func (f *faulty) NewRangeReader(ctx context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	var r reader
	err := f.call(func() (err error) {
		r.Reader, err = f.bucket.NewRangeReader(ctx, key, offset, length, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// writer writes at its end.
type writer struct {
	bytes.Buffer
	faulty *faulty
	write  func(content []byte) error
}

func (f *faulty) NewTypedWriter(ctx context.Context, key, contentType string, o *driver.WriterOptions) (driver.Writer, error) {
	return &writer{faulty: f, write: func(content []byte) error {
		return f.bucket.WriteAll(context.WithoutCancel(ctx), key, content, &blob.WriterOptions{ContentType: contentType, IfNotExist: o.IfNotExist && !f.overwrites})
	}}, nil
}

func (w *writer) Close() error {
	f := w.faulty
	write := func() error { return w.write(w.Bytes()) }
	if f.late != nil {
		late := f.late
		f.late = nil
		if err := late(); err != nil {
			return err
		}
	}
	if f.fails() {
		if f.delays {
			f.late = write
		}
		return errTrial
	}
	err := write()
	if f.fails() {
		return errTrial
	}
	return err
}

func (f *faulty) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	return f.call(func() error { return f.bucket.Delete(ctx, key) })
}
