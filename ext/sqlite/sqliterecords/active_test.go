package sqliterecords_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
)

// X1: a request that runs longer than ClientSilence stores its answer, although a later
// request of its client was answered in the meantime. Another server collects, too.
func TestRecords_RequestThatRunsLongerThanClientSilence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	newServer := func() (*server.Results, *sqliterecords.Records) {
		records := sqliterecords.NewBy(open(t, path), mock)
		results := server.NewResults(server.Config{Clock: mock, Records: records, AnswerAge: 5 * time.Minute, ClientSilence: 10 * time.Minute})
		t.Cleanup(func() { require.NoError(t, results.Close(context.Background())) })
		return results, records
	}
	results, records := newServer()
	other, _ := newServer()
	client := exactlyonce.NewClient()
	request := func(sequence int64) exactlyonce.Request {
		return exactlyonce.Request{Scope: "s", ID: exactlyonce.ID{Client: client, Sequence: sequence, Attempt: 1}}
	}
	store := func(ctx context.Context, sequence int64) ([]byte, error) {
		return records.Run(ctx, request(sequence), func(context.Context, *sqlite.Tx) ([]byte, error) { return []byte("done"), nil })
	}
	release := make(chan struct{})
	slow := make(chan error)
	begun := make(chan struct{})
	go func() {
		_, _, err := results.Do(t.Context(), request(1), func(ctx context.Context) ([]byte, error) {
			close(begun)
			<-release
			return store(ctx, 1)
		})
		slow <- err
	}()
	<-begun
	_, _, err := results.Do(t.Context(), request(2), func(ctx context.Context) ([]byte, error) { return store(ctx, 2) })
	require.NoError(t, err)
	require.NoError(t, runFor(t, mock, 15*time.Minute, results, other))
	close(release)
	require.NoError(t, <-slow)
}

// runFor moves the clock, while the servers collect.
func runFor(t *testing.T, mock *clock.Mock, d time.Duration, servers ...*server.Results) error {
	t.Helper()
	for range int(d / (30 * time.Second)) {
		mock.Add(30 * time.Second)
		for _, s := range servers {
			if err := s.Collect(t.Context()); err != nil {
				return err
			}
		}
	}
	return nil
}
