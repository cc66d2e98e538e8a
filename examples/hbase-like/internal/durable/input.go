package durable

import (
	"bytes"
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

// Input is a CSV of flights with positions to return to. A resumed run reads the flights
// before its position again, for the books.
type Input struct {
	name  string
	hash  string // SHA-256 of the input, in hex
	all   []flights.Flight
	book  *ledger.Ledger
	read  int
	begin int // flights before the position it resumed from
}

var _ checkpoint.Input[flights.Flight] = (*Input)(nil)

type inputPosition struct {
	SHA256  string `json:"sha256"`
	Flights int    `json:"flights"` // before the position
}

// OpenInput reads a regular file, or the built-in flights for "", and returns the part
// with the given number. All parts have about the same length. The flights of a part
// count from 0 and keep their line numbers. It refuses invalid rows, which would end
// every run at the same place.
func OpenInput(name string, part, parts int, book *ledger.Ledger) (*Input, error) {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("-in %s: not a regular file, which -checkpoint needs to read it again after a crash", name)
	}
	title, text, err := data.Flights(name)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(text)
	in := &Input{name: title, hash: hex.EncodeToString(hash[:]), book: book}
	r, err := flights.NewReader(in.name, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	for {
		f, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w (with -checkpoint, a bad row is refused before the run begins)", err)
		}
		in.all = append(in.all, f)
	}
	first := len(in.all) * part / parts
	in.all = in.all[first : len(in.all)*(part+1)/parts]
	for i := range in.all {
		in.all[i].Seq -= first
	}
	return in, nil
}

// Name returns the input's name for messages.
func (in *Input) Name() string { return in.name }

// Total returns the number of flights.
func (in *Input) Total() int { return len(in.all) }

// Resumed returns the number of flights before the position that the input resumed from.
func (in *Input) Resumed() int { return in.begin }

// Next implements [checkpoint.Input].
func (in *Input) Next() (flights.Flight, error) {
	if in.read == len(in.all) {
		return flights.Flight{}, io.EOF
	}
	f := in.all[in.read]
	in.book.Read(f)
	in.read++
	return f, nil
}

// Position implements [checkpoint.Input].
func (in *Input) Position() []byte {
	b, _ := json.Marshal(inputPosition{SHA256: in.hash, Flights: in.read}) // always encodes
	return b
}

// Seek implements [checkpoint.Input]. It refuses a position of another input.
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
		_, err := in.Next()
		if err != nil {
			return fmt.Errorf("%s: flight %d of %d: %w", in.name, in.read+1, to.Flights, err)
		}
	}
	in.begin = in.read
	return nil
}

// Close implements [checkpoint.Input].
func (in *Input) Close() error { return nil }
