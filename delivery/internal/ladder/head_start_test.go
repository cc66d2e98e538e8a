package ladder_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// mortal is the store of a process that is killed: nothing that it calls then arrives.
type mortal struct {
	store.Inspector

	mu       sync.RWMutex // held while a call runs: a call ends before the kill, or is refused
	isKilled bool         // guarded by mu
}

var errKilled = errors.New("killed")

// begin begins a call, which ends with mu.RUnlock if begin returns nil.
func (m *mortal) begin() error {
	m.mu.RLock()
	if m.isKilled {
		m.mu.RUnlock()
		return errKilled
	}
	return nil
}

func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isKilled = true
}

func (m *mortal) wasKilled() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.isKilled
}

func (m *mortal) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Put(ctx, queue, ms...)
}

func (m *mortal) HandOver(ctx context.Context, moves ...store.Move) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.HandOver(ctx, moves...)
}

func (m *mortal) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Take(ctx, queue, limit, lease)
}

func (m *mortal) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) ([]store.Leased, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Claim(ctx, queue, f, p, lease)
}

func (m *mortal) Extend(ctx context.Context, d time.Duration, leases ...store.Lease) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Extend(ctx, d, leases...)
}

func (m *mortal) Done(ctx context.Context, leases ...store.Lease) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Done(ctx, leases...)
}

func (m *mortal) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Release(ctx, delay, leases...)
}

func (m *mortal) Move(ctx context.Context, moves ...store.Move) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.mu.RUnlock()
	return m.Inspector.Move(ctx, moves...)
}

// Regression (laws D4, W2): the inputs of a source delivered a message that kills its
// process beside messages of the layers, in each process. Those became dead letters, too.
func TestSource_MessageThatKillsItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, memory := config()
		noChange := func(*message.Meta) {}
		putRaw(t, memory, "new", noChange, "killer")
		putRaw(t, memory, "1m", func(m *message.Meta) { m.Visit = 1 }, "b", "c")
		putRaw(t, memory, "1h", func(m *message.Meta) { m.Visit = 2 }, "d")
		process := func() (wasKilled bool) {
			s := &mortal{Inspector: memory}
			c.Store = s
			source := build(t, c).Source(nil)
			ctx, end := context.WithTimeout(t.Context(), time.Minute)
			defer end()
			for ctx.Err() == nil {
				ms, err := source.Receive(ctx, 10)
				if err != nil {
					break
				}
				for _, m := range ms {
					if m.Meta().ID == "killer" {
						time.AfterFunc(10*time.Millisecond, func() {
							s.kill()
							end()
						})
					} else {
						time.AfterFunc(50*time.Millisecond, m.Ack)
					}
				}
			}
			closing, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := source.Close(closing)
			if !s.wasKilled() {
				require.NoError(t, err)
			}
			return s.wasKilled()
		}
		deaths := 0
		for process() {
			deaths++
			time.Sleep(time.Minute) // the leases end
		}
		require.Equal(t, settle.MaxLapses, deaths)
		letters := dead(t, memory)
		require.Len(t, letters, 1)
		require.Equal(t, "killer", letters[0].Meta.ID)
		require.Equal(t, store.Lapsed, letters[0].Cause)
		queues, err := memory.Queues(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"dead"}, queues)
	})
}
