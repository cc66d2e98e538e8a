package durable

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

// Input is a CSV of flights with positions to return to. A run that resumes reads the
// flights before its position again, for the books.
type Input struct {
	name  string
	open  func() (io.ReadCloser, error)
	hash  string // SHA-256 of the whole input, in hex
	from  int    // first flight of this part
	total int    // number of flights in this part

	book   *ledger.Ledger
	file   io.Closer
	reader *rows
	read   int // flights read
	begin  int // flights before the position it resumed from
}

var _ checkpoint.Input[flights.Flight] = (*Input)(nil)

// inputPosition is the state of the input in a checkpoint.
type inputPosition struct {
	SHA256  string `json:"sha256"`
	Flights int    `json:"flights"` // before the position
}

// OpenInput opens a regular file, or the built-in flights for "". It reads the whole
// input once, to compute the checksum and to find invalid rows. An invalid row would end
// every run at the same place, and repairing it would make another input.
func OpenInput(name string, book *ledger.Ledger) (*Input, error) { return OpenPart(name, 0, 1, book) }

// OpenPart is OpenInput for one of n parts of about the same length. The flights of a
// part count from 0 and keep their line numbers.
func OpenPart(name string, part, n int, book *ledger.Ledger) (*Input, error) {
	in := &Input{name: name, book: book, open: func() (io.ReadCloser, error) { return os.Open(name) }}
	if name == "" {
		in.name = "flights.csv (built in)"
		in.open = func() (io.ReadCloser, error) { return io.NopCloser(data.Flights()), nil }
	} else if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("-in %s: not a regular file, which -checkpoint needs to read it again after a crash", name)
	}
	if err := in.examine(); err != nil {
		return nil, err
	}
	in.from, in.total = in.total*part/n, in.total*(part+1)/n-in.total*part/n
	var err error
	in.file, in.reader, err = in.again()
	return in, err
}

// rows reads the rows of one part.
type rows struct {
	*flights.Reader
	from, left int
}

// Read returns io.EOF after the last flight of the part.
func (r *rows) Read() (flights.Flight, error) {
	if r.left == 0 {
		return flights.Flight{}, io.EOF
	}
	f, err := r.Reader.Read()
	if err == nil {
		f.Seq -= r.from
		r.left--
	}
	return f, err
}

func (in *Input) examine() error {
	f, err := in.open()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	r, err := flights.NewReader(in.name, io.TeeReader(f, hash))
	if err != nil {
		return err
	}
	for ; ; in.total++ {
		if _, err := r.Read(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("%w (with -checkpoint, a bad row is refused before the run begins)", err)
		}
	}
	in.hash = hex.EncodeToString(hash.Sum(nil))
	return nil
}

// again opens the part at its beginning.
func (in *Input) again() (io.Closer, *rows, error) {
	f, err := in.open()
	if err != nil {
		return nil, nil, err
	}
	r, err := flights.NewReader(in.name, f)
	for n := 0; err == nil && n < in.from; n++ {
		_, err = r.Read()
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, &rows{r, in.from, in.total}, nil
}

// Name returns the input's name for messages.
func (in *Input) Name() string { return in.name }

// Total returns the number of flights.
func (in *Input) Total() int { return in.total }

// Resumed returns the number of flights before the position that the input resumed from.
func (in *Input) Resumed() int { return in.begin }

// Next implements [checkpoint.Input].
func (in *Input) Next() (flights.Flight, error) {
	f, err := in.reader.Read()
	if err == nil {
		in.book.Read(f)
		in.read++
	}
	return f, err
}

// Position implements [checkpoint.Input].
func (in *Input) Position() []byte {
	b, _ := json.Marshal(inputPosition{SHA256: in.hash, Flights: in.read}) // strings and numbers always encode
	return b
}

// Seek implements [checkpoint.Input]. It refuses a position in another input.
func (in *Input) Seek(position []byte) error {
	var to inputPosition
	if err := json.Unmarshal(position, &to); err != nil {
		return err
	}
	if to.SHA256 != in.hash {
		return fmt.Errorf("%s is not the input that the checkpoint is of: its SHA-256 is %.12s…, it was %.12s…; "+
			"another input needs another -checkpoint directory", in.name, in.hash, to.SHA256)
	}
	for in.read < to.Flights {
		if _, err := in.Next(); err != nil {
			return fmt.Errorf("%s: flight %d of %d: %w", in.name, in.read+1, to.Flights, err)
		}
	}
	in.begin = in.read
	return nil
}

// Close implements [checkpoint.Input].
func (in *Input) Close() error { return in.file.Close() }
