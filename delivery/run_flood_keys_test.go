package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/message"
)

// Law D5: an outage stops the worker soon, however the messages are spread over keys, and
// one key whose messages all fail never stops the worker for the others.
func TestWithFloodGuard_Keys(t *testing.T) {
	const n, forever = 3000, time.Hour
	manyKeys := func(i int) string { return fmt.Sprint(i % 100) }
	hotKey := func(percent int) func(i int) string { // spread evenly
		return func(i int) string {
			if i*percent/100 != (i+1)*percent/100 {
				return "hot"
			}
			return fmt.Sprint(i % 97)
		}
	}
	hotFirst := func(i int) string {
		if i < 2000 {
			return "hot"
		}
		return manyKeys(i)
	}
	all := func(string) bool { return true }
	hot := func(key string) bool { return key == "hot" }
	for name, c := range map[string]struct {
		key    func(i int) string
		fails  func(key string) bool
		outage time.Duration // how long calls fail
		floods bool
		failed int           // at most
		within time.Duration // of virtual time
	}{
		"all fail, without keys":                 {func(int) string { return "" }, all, 10 * time.Second, true, 200, 20 * time.Second},
		"all fail, each with a key of its own":   {func(i int) string { return fmt.Sprint(i) }, all, 10 * time.Second, true, 200, 20 * time.Second},
		"all fail, of 100 keys":                  {manyKeys, all, 10 * time.Second, true, 200, 20 * time.Second},
		"all fail, of three keys":                {func(i int) string { return fmt.Sprint(i % 3) }, all, 10 * time.Second, true, 200, 20 * time.Second},
		"all fail, of two keys":                  {func(i int) string { return fmt.Sprint(i % 2) }, all, 10 * time.Second, true, 200, 20 * time.Second},
		"all fail, of one key":                   {func(int) string { return "a" }, all, forever, false, n, 5 * time.Second},
		"all fail, 90 percent of a hot key":      {hotKey(90), all, 10 * time.Second, true, 300, 20 * time.Second},
		"all fail, 98 percent of a hot key":      {hotKey(98), all, 10 * time.Second, true, 600, 20 * time.Second},
		"one key of 100 fails":                   {manyKeys, func(k string) bool { return k == "7" }, forever, false, n / 100, 5 * time.Second},
		"one key of three fails":                 {func(i int) string { return fmt.Sprint(i % 3) }, func(k string) bool { return k == "1" }, forever, false, n / 3, 5 * time.Second},
		"one key of two fails":                   {func(i int) string { return fmt.Sprint(i % 2) }, func(k string) bool { return k == "1" }, forever, false, n / 2, 5 * time.Second},
		"a hot key of 90 percent fails":          {hotKey(90), hot, forever, false, n * 9 / 10, 5 * time.Second},
		"a hot key of 60 percent fails":          {hotKey(60), hot, forever, false, n * 6 / 10, 5 * time.Second},
		"a hot key in front of the others fails": {hotFirst, hot, forever, false, 2000, 5 * time.Second},
		"a hot key and messages without keys fail": {func(i int) string {
			if i%10 == 3 {
				return ""
			}
			return "hot"
		}, all, 10 * time.Second, true, 300, 20 * time.Second},
		"twenty keys of 100 fail, one of them hot": {hotKey(60), func(k string) bool { return hot(k) || len(k) == 1 }, forever, false, n * 7 / 10, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				summary := workKeys(t, n, c.key, func(i int, key string, at time.Duration) bool {
					return at < c.outage && c.fails(key)
				})
				require.Equal(t, n, summary.Done+summary.HandedOver, summary)
				require.Equal(t, c.floods, summary.Floods > 0, summary)
				require.LessOrEqual(t, summary.HandedOver, c.failed, summary)
				require.LessOrEqual(t, summary.Elapsed, c.within, summary)
			})
		})
	}
}

// After an outage for all, a customer who is still down has the next 1,900 messages: the
// probes get only its messages, and the worker resumes after a window of them.
func TestWithFloodGuard_ProbesOfOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(i int) string {
			if i >= 150 && i < 2000 {
				return "down"
			}
			return fmt.Sprint(i % 100)
		}
		summary := workKeys(t, 3000, key, func(_ int, key string, at time.Duration) bool {
			return at < 500*time.Millisecond || key == "down"
		})
		require.Equal(t, 1, summary.Floods, summary)
		require.Equal(t, 3000, summary.Done+summary.HandedOver, summary)
		require.LessOrEqual(t, summary.Elapsed, time.Minute, summary)
	})
}

// An import puts many messages of each customer after each other. Also then an outage of
// an hour leaves most messages in the queue.
func TestWithFloodGuard_RunsOfKeys(t *testing.T) {
	for _, length := range []int{1, 60, 100, 150, 200, 1000} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				key := func(i int) string { return fmt.Sprint(i / length) }
				summary := workKeysFor(ctx, t, 60_000, key, func(int, string, time.Duration) bool { return true })
				require.Positive(t, summary.Floods)
				require.LessOrEqual(t, summary.HandedOver, 25_000, summary)
			})
		})
	}
	t.Run("one customer is down, in a run", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			key := func(i int) string { return fmt.Sprint(i / 500) }
			summary := workKeys(t, 3000, key, func(_ int, key string, _ time.Duration) bool { return key == "2" })
			require.Zero(t, summary.Floods)
			require.Equal(t, 500, summary.HandedOver)
		})
	})
	t.Run("a bad customer after another one, and a few answers between them", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			key := func(i int) string {
				switch {
				case i < 300 || i > 300 && i < 350:
					return "first"
				case i >= 2500:
					return "second"
				}
				return "good"
			}
			summary := workKeys(t, 3000, key, func(_ int, key string, _ time.Duration) bool { return key != "good" })
			require.Zero(t, summary.Floods)
			require.Equal(t, 300+49+500, summary.HandedOver)
		})
	})
	t.Run("the service is up again after half a window of probes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			key := func(i int) string {
				if i < 100 {
					return fmt.Sprint(i)
				}
				return "one"
			}
			summary := workKeys(t, 3000, key, func(_ int, _ string, at time.Duration) bool { return at < 25*time.Second })
			require.Equal(t, 1, summary.Floods)
			require.LessOrEqual(t, summary.Elapsed, 35*time.Second)
		})
	})
	t.Run("a window of one message", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			key := func(i int) string { return fmt.Sprint(i) }
			summary := workKeys(t, 3000, key, func(_ int, _ string, at time.Duration) bool { return at < 10*time.Second }, delivery.WithFloodGuard(0.5, 1))
			require.Positive(t, summary.Floods)
			require.LessOrEqual(t, summary.HandedOver, 300)
		})
	})
}

// A customer who is down, and two bad messages of another customer, stop the worker by
// mistake. A probe with a message of a third customer shows that the service is up, or
// the worker resumes after a window of probes.
func TestWithFloodGuard_ProbesWithAHotKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(i int) string {
			switch {
			case i < 100 && i%50 == 0:
				return "poison"
			case i < 200 || i%20 != 0:
				return "down"
			}
			return fmt.Sprint(i)
		}
		summary := workKeys(t, 3000, key, func(_ int, key string, _ time.Duration) bool { return key == "down" || key == "poison" })
		require.Equal(t, 1, summary.Floods, summary)
		require.Equal(t, 3000, summary.Done+summary.HandedOver, summary)
		require.LessOrEqual(t, summary.Elapsed, time.Minute, summary)
	})
}

// workKeys runs a worker over n messages, whose calls take 20 ms.
func workKeys(t *testing.T, n int, key func(i int) string, fails func(i int, key string, at time.Duration) bool, opts ...delivery.RunOption) delivery.Summary {
	t.Helper()
	return workKeysFor(t.Context(), t, n, key, fails, opts...)
}

// workKeysFor is workKeys until ctx ends.
func workKeysFor(ctx context.Context, t *testing.T, n int, key func(i int) string, fails func(i int, key string, at time.Duration) bool, opts ...delivery.RunOption) delivery.Summary {
	t.Helper()
	begun := time.Now()
	messages := make(chan int, n)
	for i := range n {
		messages <- i
	}
	close(messages)
	source := channel.NewSource(messages, func(i int) *message.Meta { return &message.Meta{ID: fmt.Sprint(i), Key: key(i)} })
	call := asyncop.Blocking(func(_ context.Context, i int) (string, error) {
		time.Sleep(20 * time.Millisecond)
		if fails(i, key(i), time.Since(begun)) {
			return "", errors.New("503")
		}
		return "done", nil
	})
	op := asyncop.UnorderedWait(call, 10*time.Second, 50, asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
	summary, err := delivery.Run(ctx, source, op, &collected{}, append(opts, silently)...)
	require.NoError(t, err)
	return summary
}
