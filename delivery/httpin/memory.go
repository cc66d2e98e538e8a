package httpin

import (
	"crypto/sha256"
	"sync"
)

// maxRemembered is how many keys a handler remembers: at most 20 MB.
const maxRemembered = 100_000

// hash stands for a key, or for a request.
type hash [16]byte

func hashOf(parts ...string) hash {
	h := sha256.New()
	for _, p := range parts {
		part := sha256.Sum256([]byte(p)) // so that no two lists are the same text
		_, _ = h.Write(part[:])
	}
	return hash(h.Sum(nil)[:16])
}

// memory knows which request came first with a key. Safe for concurrent use.
type memory struct {
	limit int

	mu    sync.Mutex
	seen  map[hash]*seen // by key
	order []hash         // a ring: the oldest is at next, when it is full
	next  int
}

// seen is the first request with a key.
type seen struct {
	request hash
	storing chan struct{} // capacity 1: held by the request that calls the sink
	safe    bool          // its message is stored; guarded by storing
}

// begin notes a request, and returns the first one with its key, or nil if that was
// another request.
func (m *memory) begin(key, request hash) *seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.seen[key]; s != nil {
		if s.request != request {
			return nil
		}
		return s
	}
	if m.seen == nil {
		m.seen = map[hash]*seen{}
	}
	s := &seen{request: request, storing: make(chan struct{}, 1)}
	m.seen[key] = s
	if len(m.order) < m.limit {
		m.order = append(m.order, key)
		return s
	}
	delete(m.seen, m.order[m.next])
	m.order[m.next] = key
	m.next = (m.next + 1) % m.limit
	return s
}
