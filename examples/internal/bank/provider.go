package bank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
)

// provider is a payment provider: an HTTP service with books in SQLite. It charges a
// request with an id once, because the answer is stored in the charge's transaction.
type provider struct {
	ProviderConfig
	db      *sqlite.DB
	records *sqliterecords.Records

	mu     sync.Mutex
	random *rand.Rand
}

const providerTables = `CREATE TABLE IF NOT EXISTS charges (
	number   INTEGER PRIMARY KEY,
	order_id TEXT NOT NULL,
	cents    INTEGER NOT NULL
) STRICT`

type (
	chargeRequest struct {
		Order  string `json:"order"`
		Number int64  `json:"number"`
		Cents  int64  `json:"cents"`
	}
	chargeResponse struct {
		Charge   string `json:"charge,omitempty"`
		Declined string `json:"declined,omitempty"`
	}
)

// ProviderConfig configures a provider.
type ProviderConfig struct {
	Name      string
	Dir       string // directory of its books and its address file
	Start     int    // number of earlier starts
	Seed      uint64
	DeclineOf int           // declines one order in DeclineOf
	Down      time.Duration // how long it answers 503 after its start
}

// Serve runs a provider until the process ends. It writes its address, which changes with
// each start, to a file, and calls ready once it accepts calls.
func Serve(ctx context.Context, c ProviderConfig, ready func()) error {
	db, err := sqlite.OpenDB(ctx, booksOf(c.Dir, c.Name))
	if err != nil {
		return err
	}
	if err := sqliterecords.New(db).Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.Writer().ExecContext(ctx, providerTables); err != nil {
		return err
	}
	p := &provider{
		ProviderConfig: c, db: db, records: sqliterecords.New(db),
		random: rand.New(rand.NewPCG(c.Seed, uint64(c.Start)<<8|uint64(c.Name[0]))),
	}
	results := server.NewResults(server.Config{Records: p.records})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file := addressOf(c.Dir, c.Name)
	if err := os.WriteFile(file+".new", []byte(l.Addr().String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	ready()
	tracked := results.Handler(http.HandlerFunc(p.charge), server.HandlerConfig{
		Scope: func(*http.Request) (string, bool) { return "bank", true }, // the only client
	})
	server := &http.Server{Handler: p.trouble(tracked), ReadHeaderTimeout: time.Minute}
	return server.Serve(l)
}

func booksOf(dir, provider string) string   { return filepath.Join(dir, provider+".db") }
func addressOf(dir, provider string) string { return filepath.Join(dir, provider+".address") }

func (p *provider) roll(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.IntN(n)
}

// trouble disturbs a fifth of the requests to the provider.
func (p *provider) trouble(next http.Handler) http.Handler {
	begun := time.Now()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if time.Since(begun) < p.Down {
			if p.roll(2) == 0 {
				w.Header().Set("Retry-After", "1")
			}
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		switch r := p.roll(100); {
		case r < 4: // request lost
			panic(http.ErrAbortHandler)
		case r < 12: // answer lost
			next.ServeHTTP(nowhere{http.Header{}}, req)
			panic(http.ErrAbortHandler)
		case r < 16: // too slow for clients
			time.Sleep(Patience + 50*time.Millisecond)
		case r < 20: // unavailable
			http.Error(w, "overloaded", http.StatusServiceUnavailable)
			return
		}
		time.Sleep(time.Duration(2+p.roll(8)) * time.Millisecond)
		next.ServeHTTP(w, req)
	})
}

type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header         { return n.header }
func (n nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (n nowhere) WriteHeader(int)             {}

// charge is the handler inside the tracking.
func (p *provider) charge(w http.ResponseWriter, req *http.Request) {
	var c chargeRequest
	if err := json.NewDecoder(req.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	book := func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
		answer, err := p.book(ctx, tx, c)
		return answer.Encode(), err
	}
	var stored []byte
	var err error
	if request, ok := exactlyonce.RequestFromContext(req.Context()); ok {
		stored, err = p.records.Run(req.Context(), request, book)
	} else {
		err = p.db.Write(req.Context(), func(ctx context.Context, tx *sqlite.Tx) (err error) {
			stored, err = book(ctx, tx)
			return err
		})
	}
	var answer exactlyonce.Response
	if err == nil {
		err = answer.Decode(stored)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer.Send(w)
}

func (p *provider) book(ctx context.Context, tx *sqlite.Tx, c chargeRequest) (exactlyonce.Response, error) {
	if Declines(p.Seed, p.Name, c.Number, p.DeclineOf) {
		return answer(http.StatusPaymentRequired, chargeResponse{Declined: "card declined"})
	}
	result, err := tx.ExecContext(ctx, "INSERT INTO charges (order_id, cents) VALUES (?, ?)", c.Order, c.Cents)
	if err != nil {
		return exactlyonce.Response{}, err
	}
	number, err := result.LastInsertId()
	if err != nil {
		return exactlyonce.Response{}, err
	}
	return answer(http.StatusCreated, chargeResponse{Charge: fmt.Sprintf("%s-%d", p.Name, number)})
}

func answer(status int, c chargeResponse) (exactlyonce.Response, error) {
	body, err := json.Marshal(c)
	return exactlyonce.Response{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, err
}

// Booked is a charge in a provider's books.
type Booked struct {
	Provider, Charge string
	Cents            int64
}

// ReadBooks returns the charges of all providers by order.
func ReadBooks(ctx context.Context, dir string) (map[string][]Booked, error) {
	books := map[string][]Booked{}
	for _, provider := range Providers {
		db, err := sqlite.OpenDB(ctx, booksOf(dir, provider))
		if err != nil {
			return nil, err
		}
		rows, err := db.Reader().QueryContext(ctx, "SELECT number, order_id, cents FROM charges ORDER BY number")
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		for rows.Next() {
			var number int64
			var id string
			b := Booked{Provider: provider}
			if err := rows.Scan(&number, &id, &b.Cents); err != nil {
				return nil, errors.Join(err, rows.Close(), db.Close())
			}
			b.Charge = fmt.Sprintf("%s-%d", provider, number)
			books[id] = append(books[id], b)
		}
		if err := errors.Join(rows.Err(), rows.Close(), db.Close()); err != nil {
			return nil, err
		}
	}
	return books, nil
}
