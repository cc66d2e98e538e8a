package queue_test

import (
	"fmt"
	"testing"

	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/queue/queuetest"
)

// kinds are the queues of this package.
var kinds = map[queuetest.Kind]func(capacity int) queue.Queue[string]{
	queuetest.Ordered:   queue.NewOrdered[string],
	queuetest.Unordered: queue.NewUnordered[string],
}

// Laws Q1 and Q2.
func TestConformance(t *testing.T) {
	for kind, newQueue := range kinds {
		t.Run(kind.String(), func(t *testing.T) { queuetest.Run(t, kind, newQueue) })
	}
}

// Laws Q1 and Q2 under random schedules: see [queuetest.Replay] for the bytes.
func FuzzQueue(f *testing.F) {
	const put, wall, complete, again, pop = 0 << 5, 3 << 5, 4 << 5, 6 << 5, 7 << 5
	f.Add([]byte{3, put, put, put, wall, put, complete | 1, complete, complete | 1, complete, pop | 3}) // doc.go's picture
	f.Add([]byte{8, put, put, wall, put, put, wall, put, complete | 4, complete | 3, complete | 2, complete | 1, pop, complete})
	f.Add([]byte{1, wall, wall, pop, pop, put, put, complete, again, pop, pop})
	f.Add([]byte{4, put, complete, wall, put, complete, put, pop | 3, put, wall, wall, complete, pop | 3})
	f.Add([]byte{23, put, put, put, put, complete | 3, complete | 2, complete | 1, pop, put, complete, pop | 3, put, complete | 9})
	f.Add([]byte("the quick brown fox jumps over the lazy dog\xff\xff\xe0\x80\x9f\xc0"))
	f.Fuzz(func(t *testing.T, schedule []byte) {
		for kind, newQueue := range kinds {
			queuetest.Replay(t, kind, newQueue, schedule)
		}
	})
}

// The suite fails for a queue that breaks a law.
func TestSuiteFindsBrokenQueues(t *testing.T) {
	unordered := queue.NewUnordered[string]
	tests := []struct {
		name     string
		kind     queuetest.Kind
		newQueue func(capacity int) queue.Queue[string]
		schedule []byte
	}{
		{"the other order", queuetest.Ordered, unordered, []byte{8, 0, 0, 0x81}},
		{"a slot too many", queuetest.Unordered, func(n int) queue.Queue[string] { return unordered(n + 1) }, []byte{0, 0, 0}},
		{"no walls", queuetest.Unordered, func(n int) queue.Queue[string] { return noWalls{unordered(n)} }, []byte{8, 0, 0x60, 0, 0x81}},
		{"a pop that pops nothing", queuetest.Unordered, func(n int) queue.Queue[string] { return noPop{unordered(n)} }, []byte{8, 0, 0x80, 0xe0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake := &fakeT{TB: t}
			func() {
				defer func() {
					if r := recover(); r != nil && r != fake {
						panic(r)
					}
				}()
				queuetest.Replay(fake, test.kind, test.newQueue, test.schedule)
			}()
			if fake.failure == "" {
				t.Error("passed")
			}
		})
	}
}

type noWalls struct{ queue.Queue[string] }

func (q noWalls) PutControl(v string) *queue.Entry[string] {
	e := q.Put(v)
	q.Complete(e)
	return e
}

type noPop struct{ queue.Queue[string] }

func (q noPop) Pop() {}

// fakeT records a failure instead of reporting it.
type fakeT struct {
	testing.TB
	failure string
}

func (f *fakeT) Logf(string, ...any) {}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.failure = fmt.Sprintf(format, args...)
	panic(f)
}
