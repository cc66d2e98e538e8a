package httpin

import (
	"crypto/sha256"
	"sync"
)

// maxRemembered is how many keys a handler remembers: at most 10 MB.
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
	safe    bool // its message is stored
}

// begin notes a request. other says that there was another one with its key, safe that it was stored before.
func (m *memory) begin(key, request hash) (other, safe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.seen[key]; s != nil {
		return s.request != request, s.safe
	}
	if m.seen == nil {
		m.seen = map[hash]*seen{}
	}
	m.seen[key] = &seen{request: request}
	if len(m.order) < m.limit {
		m.order = append(m.order, key)
		return false, false
	}
	delete(m.seen, m.order[m.next])
	m.order[m.next] = key
	m.next = (m.next + 1) % m.limit
	return false, false
}

// stored notes that the message of a request is safe.
func (m *memory) stored(key hash) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.seen[key]; s != nil {
		s.safe = true
	}
}
