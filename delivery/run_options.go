package delivery

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/internal/guard"
)

// How many messages are received and put at once.
const (
	defaultBatch = 100    // of an operator that does not say how much it can take
	maxReceived  = 1000   // a journey to the engine, which many share; they are handed to the operator after it
	maxPuts      = 10_000 // the acknowledgement of a put costs a journey to the engine, which many share
)

// RunConfig are the settings of [Run]. A zero field has its default. Where several are given, a field has the last value that is not zero.
type RunConfig struct {
	// Batch is how many messages are received at once, and how many results are put into the sink at once, at most. By default Run receives up
	// to 1,000 at once, and puts as many as the operator has slots: 100 to 10,000. The sink gets the results at hand, so a result does not wait for
	// others; as many results may wait for the sink. Run receives only as many messages as the operator has free slots, and two for each slot that
	// became free while it received the last ones, so a worker does not keep messages from others that it cannot process.
	Batch int

	// Drain is how long Run finishes its messages after its context has ended; the default is 20 s. Messages that are not done then are released.
	// If it is negative, all are released at once.
	Drain time.Duration

	// FloodShare sets when Run stops receiving: when more than this share of the last FloodWindow new messages has failed; the default is half
	// (0.5) of the last 100. So an outage leaves the messages in the queue, and does not fill the dead letters (law D5). Messages in the operator
	// are still processed, and may fail as well. A share of 1 turns this flood guard off.
	//
	// A message has failed if it was handed over to the failure sink, dropped by the failure policy, or nacked with a delay. Three kinds of
	// messages do not count as failed, since they show that the service answers, or are not evidence about it: a message whose retry succeeded; a
	// message that was refused for good, by a rejection ([predicates.NewRejection]) or by [message.Message.Reject]; and a message that has failed
	// before, and comes from a layer.
	//
	// After a second Run receives a tenth of the window: ten messages. If enough of them are answered, it resumes; if not, it tries again after
	// two seconds, four, and then each five seconds. It logs both. So an outage of an hour costs some 7,000 failed visits, and messages wait for
	// up to five seconds after it. Run cannot tell an outage from a batch of bad messages whose error is unknown: such a batch passes with two
	// messages a second. Let the function name the errors that are permanent.
	FloodShare  float64
	FloodWindow int

	// Monitor, if it is not nil, reports the state of Run. Run panics if another Run has it.
	Monitor *Monitor

	// Clock is the clock of its waits; the default is the machine's. The engine's clock decides when a message is due.
	Clock clock.Clock
	// Logger gets failures and the flood guard at warn level, and the start of a drain and the [Summary] at the end at info level. The default is
	// slog.Default().
	Logger *slog.Logger
}

func runConfig(configs []RunConfig) RunConfig {
	c := guard.Merged(configs)
	if !(c.FloodShare >= 0 && c.FloodShare <= 1) || c.FloodWindow < 0 || c.Batch < 0 {
		panic(fmt.Sprintf("delivery: Run: a batch of %d, a flood share of %v, a window of %d: want a share from 0 to 1, and no negative number",
			c.Batch, c.FloodShare, c.FloodWindow))
	}
	if c.Drain = max(0, cmp.Or(c.Drain, 20*time.Second)); c.FloodShare == 0 {
		c.FloodShare = 0.5
	}
	c.FloodWindow = cmp.Or(c.FloodWindow, 100)
	c.Clock = cmp.Or(c.Clock, clock.New())
	c.Logger = guard.Logger(c.Logger)
	return c
}
