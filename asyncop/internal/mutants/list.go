package main

var mutants = []mutant{
	// ---- core: slots

	{
		"a letter of an earlier generation finds the element", "A2", "core/slot.go",
		`s != nil && s.generation == r.Generation && r.Generation != 0`,
		`s != nil && s.generation != 0 && r.Generation != 0`,
	},
	{
		"a generation does not end with its phase", "A2", "core/slot.go",
		`if p != preparing && p != running { // otherwise`,
		`if p == endedWithoutResults { // otherwise`,
	},
	{
		"a generation comes twice", "A2", "core/path.go",
		`g.slots.generations++`,
		`g.slots.generations = 1`,
	},
	{
		"generations begin again after a burst", "A2", "core/slot.go",
		`*t = slots[IN, OUT]{generations: t.generations, sideTables: t.sideTables}`,
		`*t = slots[IN, OUT]{sideTables: t.sideTables}`,
	},
	{
		"an element has the reasons of the element that had its slot before", "D6", "core/slot.go",
		`	for _, other := range *t.sideTables {
		other.clear(s.index)
	}
`,
		``,
	},
	{
		"a deadline of its own outlives its element", "A3", "core/slot.go",
		`		g.outOfOrder.Cancel(&g.ownDeadlines.get(s.index).timer)
`,
		``,
	},
	{
		"an element with a deadline of its own has the common one, too", "A3", "core/slot.go",
		`s.phase <= lastLive && !s.hasOwnDeadline`,
		`s.phase <= lastLive`,
	},
	{
		"the last attempt hides the doubt about an earlier one", "X1", "core/slot.go",
		`s.doubt = max(s.doubt, deduplicated)`,
		`s.doubt = deduplicated`,
	},
	{
		"a request that was not sent is in doubt", "X1", "core/slot.go",
		`case stage == predicates.ClientDispatch || reason`,
		`case reason`,
	},

	// ---- core: the machine

	{
		"one more element than there are slots", "Q2", "core/machine.go",
		`return g.Queue.Cap() - g.slots.taken`,
		`return g.Queue.Cap() + 1 - g.slots.taken`,
	},
	{
		"the elements that may wait for a key are not counted", "K1", "core/machine.go",
		`isCrowded := g.keys != nil && g.keys.crowdedLines > 0`,
		`isCrowded := false`,
	},
	{
		"the end of the input cuts a wait that a server demanded", "A5", "core/ending.go",
		`if s.phase == backoff && s.retry&Demanded == 0 {`,
		`if s.phase == backoff {`,
	},
	{
		"the end of the input leaves elements in back-off", "A5", "core/ending.go",
		`if s.phase == backoff && s.retry&Demanded == 0 {`,
		`if false {`,
	},
	{
		"retries go on after the end of the input", "A5", "core/ending.go",
		`g.retriesEnded = true`,
		`g.retriesEnded = false`,
	},
	{
		"timers go before completions", "T1", "core/machine.go",
		`	g.readLetters()
	g.fireTimers(now)
`,
		`	g.fireTimers(now)
	g.readLetters()
`,
	},
	{
		"an attempt starts after a cancel", "A5", "core/path.go",
		`	g.EndIfCancelled() // the driver may not have noticed the cancel yet
`,
		``,
	},
	{
		"an attempt starts at the deadline", "A5", "core/path.go",
		`g.overdue = g.now >= s.due`,
		`g.overdue = g.now > s.due`,
	},
	{
		"the deadline is compared with an old reading of the clock", "A5", "core/path.go",
		`	g.refresh()
	g.overdue =`,
		`	g.overdue =`,
	},
	{
		"a call takes no permit", "A5", "core/path.go",
		`		g.freePermits--
	}
	return granted`,
		`	}
	return granted`,
	},
	{
		"retries without delay hold up first attempts", "D4", "core/path.go",
		`n < stepLimit && g.freePermits > g.ready.Len();`,
		`n < 0;`,
	},
	{
		"a later failure hides the first", "F1", "core/ending.go",
		`	if g.state.Failure == nil {
		g.state.Failure, g.state.EndedBy = err, by`,
		`	if err != nil {
		g.state.Failure, g.state.EndedBy = err, by`,
	},
	{
		"completions count after the failure of the run", "A1", "core/machine.go",
		`for g.unread != nil && g.state.Failure == nil {`,
		`for g.unread != nil {`,
	},

	// ---- core: items of a checkpoint

	{
		"a checkpoint holds what has nothing more to emit", "C1", "core/item.go",
		`return len(s.attempt.Results) > 0`,
		`return len(s.attempt.Results) >= 0`,
	},
	{
		"a checkpoint holds what has ended", "C1", "core/item.go",
		`	case endedWithoutResults:
		return false`,
		`	case endedWithoutResults:
		return true`,
	},
	{
		"a checkpoint holds the marker of the end", "C1", "core/item.go",
		`return !s.isMarker`,
		`return true`,
	},
	{
		"a checkpoint does not hold what is being called", "C1", "core/item.go",
		`	case controlElement:
		return !s.isMarker`,
		`	case running:
		return false
	case controlElement:
		return !s.isMarker`,
	},
	{
		"a checkpoint does not know the rest of a back-off", "C3", "core/item.go",
		`it.Wait, it.Retry = due-g.now, s.retry`,
		`it.Retry = s.retry`,
	},
	{
		"an attempt that will be made again counts", "A4", "core/item.go",
		`it.Attempts-- // its`,
		`_ = it // its`,
	},
	{
		"a restored element does not wait for the rest of its back-off", "C3", "core/item.go",
		`if it.Wait <= 0 || g.retriesEnded`,
		`if it.Wait >= 0 || g.retriesEnded`,
	},
	{
		"a restored element waits after the end of the input", "A5", "core/item.go",
		`if it.Wait <= 0 || g.retriesEnded && it.Retry&Demanded == 0 {`,
		`if it.Wait <= 0 {`,
	},
	{
		"a restored element that has no time left fails the run, and every restart", "C3", "core/item.go",
		`hasEnded = left <= 0 && !g.timeoutFailsRun()`,
		`hasEnded = left <= 0`,
	},
	{
		"a restored element whose own timeout is negative fails the run, and every restart", "C3", "core/item.go",
		`if timeout < 0 && it.Restored && g.timeoutFailsRun() {`,
		`if false {`,
	},
	{
		"a restored element has its whole timeout again", "A3", "core/item.go",
		`left := timeout - it.Spent`,
		`left := timeout`,
	},
	{
		"a restored element whose own timeout has passed has unlimited time", "A3", "core/item.go",
		`cmp.Or(g.leastTime(g.Timeout), leastWithoutTimeout)`,
		`g.leastTime(g.Timeout)`,
	},
	{
		"the wait for the first attempt uses up the time that begins with it", "A3", "core/item.go",
		`	case !g.FromAttempt:
		return g.now - s.accepted`,
		`	case true:
		return g.now - s.accepted`,
	},
	{
		"an attempt before the restart is not in doubt", "X1", "core/item.go",
		`		s.doubt = notDeduplicated
	}
	if g.introduce`,
		`	}
	if g.introduce`,
	},
	{
		"an observer that breaks on acceptance fails no attempt", "A6", "core/observers.go",
		`			r.broken = err
`,
		`			_ = err
`,
	},

	// ---- core: attempts

	{
		"an attempt has more time than its element", "A3", "core/path.go",
		`deadline := s.due`,
		`deadline := Never`,
	},
	{
		"an attempt has no timeout of its own", "A3", "core/path.go",
		`s.lastBegan+g.AttemptTimeout < deadline {`,
		`false {`,
	},
	{
		"an error that the function returns is lost", "A6", "core/path.go",
		`		a.CompleteExceptionally(err) // late`,
		`		_ = err // late`,
	},
	{
		"a call that ignores its end gives its permit back", "A5", "core/path.go",
		`if end.OperatorPermit {`,
		`if true {`,
	},
	{
		"a call that has timed out was not sent", "X1", "core/path.go",
		`end.Stage = max(predicates.NetworkTime, end.Stage)`,
		`_ = end.Stage`,
	},
	{
		"the timer of an attempt outlives it", "T1", "core/path.go",
		`	g.Timers.Cancel(&s.timer)
	var results []OUT`,
		`	var results []OUT`,
	},
	{
		"a retry is due at the deadline", "A5", "core/path.go",
		`d.Delay >= left // d.Capped`,
		`d.Delay > left // d.Capped`,
	},
	{
		"an element that ends behind others of its key lets the first one continue", "O1", "core/keys.go",
		`if !wasFirst {`,
		`if !wasFirst && false {`,
	},
	{
		"a backend hears of a call for each element that has shared it", "B4", "core/path.go",
		`Borrowed: t.Borrowed(),`,
		`Borrowed: false,`,
	},
	{
		"what could not be prepared is an answer of the backend", "B4", "core/workers.go",
		`			a.Borrow() // like a borrowed outcome,`,
		`			_ = a // like a borrowed outcome,`,
	},
	{
		"a back-off without a limit begins before a call that has blocked the loop", "A5", "core/machine.go",
		` || c.Policy.Classify != nil`,
		``,
	},
	{
		"a wait is not cut to the time that is left", "C1", "core/path.go",
		`		d.Delay = left // for`,
		`		// for`,
	},
	{
		"a wait that a server demanded is cut to the strategy's", "A5", "core/path.go",
		`max(d.Delay, d.Demanded)`,
		`d.Delay`,
	},
	{
		"a retry does not wait for the call that keeps its key", "K1", "core/path.go",
		`if g.keys != nil && !g.keys.mayBeCalled(s) {`,
		`if false {`,
	},
	{
		"the handler does not know of the timeout", "A3", "core/path.go",
		"g.state.Erred = failure, g.now\n\t}\n\tg.failTimedOut(s, failure)",
		"g.state.Erred = failure, g.now\n\t}\n\tg.failElement(s, failure)",
	},
	{
		"the context of a call ends by a cancel at the deadline", "A3", "core/path.go",
		`g.endAttempt(s, ranOut)`,
		`g.endAttempt(s, cutOff)`,
	},
	{
		"a call that runs at the deadline is not in doubt", "X1", "core/path.go",
		`		s.doubt = max(s.doubt, doubtOf(end.Deduplicated))
`,
		`		_ = end
`,
	},

	// ---- core: decisions

	{
		"the attempts that a strategy sees count from 0", "A4", "core/path.go",
		`	v.Number = int(s.attempts)
`,
		`	v.Number = int(s.attempts) - 1
`,
	},
	{
		"a predicate that panics is not an outcome", "A6", "core/path.go",
		`		d = decision.Fail(v, err)
`,
		`		_ = err
`,
	},
	{
		"a strategy does not know that the input has ended", "A5", "core/path.go",
		`situation.Finishing = g.retriesEnded`,
		`situation.Finishing = false`,
	},
	{
		"an attempt that asks for a retry leaves no doubt", "X1", "core/path.go",
		`	s.addDoubt(reason, v.Stage, isDeduplicated)
	if s.doubt == deduplicated && isRefused(`,
		`	_ = reason
	if s.doubt == deduplicated && isRefused(`,
	},
	{
		"the reason of an attempt is not kept", "D6", "core/path.go",
		`		g.reasons.ref(s.index).last = failureReason
`,
		``,
	},

	// ---- core: ends

	{
		"an element that fails the run is dropped", "F1", "core/path.go",
		`	if g.FailsRun {
`,
		`	if false {
`,
	},
	{
		"an element without results is not reported", "O1", "core/path.go",
		`		g.PopHead(observe.Empty)
`,
		`		e.Value.phase = endedWithoutResults
		g.PopHead(observe.Empty)
`,
	},
	{
		"an element that is emitted is not reported", "O1", "core/path.go",
		`		g.state.Done--
		g.Ended(s, how)
`,
		`		g.state.Done--
		if how != observe.Emitted {
			g.Ended(s, how)
		}
`,
	},
	{
		"results leave before those of earlier elements of their key", "K1", "core/path.go",
		`	if g.keys == nil || g.keys.isFirst(s) { // otherwise s`,
		`	if true { // otherwise s`,
	},
	{
		"an element that has failed at the end of the run is lost", "A1", "core/ending.go",
		`	case controlElement, endedWithoutResults:
`,
		`	case controlElement, endedWithoutResults, failing:
`,
	},
	{
		"the context of a call ends by a timeout with the run", "F1", "core/ending.go",
		`end := g.endAttempt(s, cutOff)`,
		`end := g.endAttempt(s, ranOut)`,
	},

	// ---- core: user code that breaks

	{
		"a panic of the function is lost", "A6", "core/path.go",
		`			err = g.noteBroken("AsyncInvoke", recover())`,
		`			_ = g.noteBroken("AsyncInvoke", recover())`,
	},
	{
		"a batch that runtime.Goexit has interrupted keeps its permits", "A6", "core/ending.go",
		`		g.batches.send() // frees`,
		`		// frees`,
	},

	// ---- core: features

	{
		"an attempt starts after its cost has slept over the deadline", "A5", "core/backend.go",
		`	g.overdue = g.now >= s.due
	if g.overdue {
		return refused
	}
`,
		`	g.overdue = g.now >= s.due
`,
	},
	{
		"the time that the policy takes after a backend has heard does not count", "A5", "core/path.go",
		`	g.ranCode = true // the policy runs next
`,
		``,
	},
	{
		"the budget is charged for a retry that is too late", "A3", "core/path.go",
		`	if s.due != Never { // Remaining`,
		`	if false { // Remaining`,
	},
	{
		"a backend gets the end of a call with the time of its start", "B4", "core/path.go",
		`	g.refresh()
	// A call that began`,
		`	// A call that began`,
	},
	{
		"a call that is cut off counts against its backend, however late it began", "B4", "core/path.go",
		`Cut: isCut,`,
		`Cut: isCut && false,`,
	},
	{
		"a call that is cut off is ignored, however early it began", "B4", "core/path.go",
		`g.now >= s.due && g.isHurried(s, s.lastBegan) &&`,
		`g.now >= s.due &&`,
	},
	{
		"a member of a batch does not count for the outcome of its call", "B2", "core/backend.go",
		`	b.lastBatch.Left++
`,
		``,
	},
	{
		"a full batch goes before timers that are due", "T1", "core/batches.go",
		` || g.nextTimer() <= g.now`,
		``,
	},
	{
		"a member of a batch starts at its deadline", "A5", "core/batches.go",
		`		if member == granted {`,
		`		if true {`,
	},
	{
		"a batch that has no members keeps its permit", "A5", "core/batches.go",
		`	g.freePermits++
`,
		``,
	},
	{
		"a call begins after a cancel during the step before its retry", "A5", "core/workers.go",
		`	g.EndIfCancelled() // the driver may`,
		`	_ = g // the driver may`,
	},
	{
		"a call begins at its deadline after what its strategy wanted done first", "A5", "core/workers.go",
		`g.state.Failure != nil || g.now >= s.attempt.Until`,
		`g.state.Failure != nil`,
	},
	{
		"the end of an attempt is told again at the end of its element", "O1", "core/path.go",
		`	g.attemptEnd = attemptEnd{}
}`,
		`}`,
	},
	{
		"an element is idempotent because another one is", "X1", "core/path.go",
		`v.Idempotent = false`,
		`_ = v.Idempotent`,
	},
	{
		"the time of an attempt includes that of the policy", "O1", "core/path.go",
		`		g.attemptEnd.took, g.attemptEnd.isTimed = g.now-s.lastBegan, true
`,
		``,
	},
	{
		"the backend does not learn of an attempt whose policy exits", "B4", "core/path.go",
		`	if g.backend != nil && !j.isReported {`,
		`	if false {`,
	},
	{
		"the step before a retry is done before the next retry, too", "A5", "core/path.go",
		`step = g.retrySteps.take(s.index)`,
		`step = g.retrySteps.get(s.index)`,
	},
	{
		"the time of an attempt includes the question to its strategy", "O1", "core/workers.go",
		`		q.end.took, q.end.isTimed = g.now-s.lastBegan, true`,
		`		_ = q`,
	},
	{
		"an attempt that is cut off has taken no time", "O1", "core/ending.go",
		`err: context.Canceled, took: g.now - s.lastBegan, isTimed: true}`,
		`err: context.Canceled, isTimed: true}`,
	},
	{
		"the end of an attempt whose strategy is asked is not told", "O1", "core/workers.go",
		`	g.attemptEnd = q.end
`,
		``,
	},
	{
		"letters that were taken from the mailbox are lost", "Q1", "core/path.go",
		`if g.unread == nil && g.forming == nil && !hasReservation {`,
		`if g.forming == nil && !hasReservation {`,
	},
	{
		"a step that fails waits for the function to return", "A6", "core/workers.go",
		`	a.EndInvoke()`,
		`	`,
	},
	{
		"a nil is no element of an interface type", "F1", "drive/items.go",
		`ok = reflect.TypeFor[IN]().Kind() == reflect.Interface`,
		`ok = false`,
	},
	{
		"a strategy that ends its goroutine answers", "A6", "core/workers.go",
		`err = call.Panicked(recovered)`,
		`_ = recovered`,
	},
	{
		"what fails before a call is in doubt", "X1", "core/workers.go",
		`Stage: predicates.ClientDispatch, Err: err`,
		`Stage: predicates.NetworkTime, Err: err`,
	},
	{
		"any number of strategies is asked", "Q2", "core/workers.go",
		`if running.Load() >= 2*int64(g.Queue.Cap()) {`,
		`if false {`,
	},
	{
		"a handler has no limit", "A3", "core/handler.go",
		`	g.Timers.Arm(&s.timer, deadline)
`,
		``,
	},
	{
		"the context of a handler does not end with its limit", "A3", "core/handler.go",
		`	c.Expire()
`,
		``,
	},
	{
		"what the failure sink does not take is not offered again", "A1", "core/sink.go",
		`		g.Timers.Arm(&s.timer, later(g.now, o.wait))
`,
		``,
	},
	{
		"what the failure sink took during the end is offered again", "A1", "core/sink.go",
		`return h.running != nil && h.running.err == nil &&`,
		`return false && h.running.err == nil &&`,
	},
	{
		"what the failure sink can never take is offered for ever", "W2", "core/sink.go",
		`o.refused = errors.Is(o.err, message.ErrRefused)`,
		`_ = errors.Is(o.err, message.ErrRefused)`,
	},
	{
		"what the failure sink refuses may be repeated although it is in doubt", "X1", "core/sink.go",
		`g.messages.Reject(s, o.unsafeToRepeat)`,
		`g.messages.Reject(s, false)`,
	},
	{
		"a failure is handed over before earlier elements of its key have ended", "K1", "core/sink.go",
		`if g.keys == nil || g.keys.isFirst(s) { // otherwise`,
		`if true { // otherwise`,
	},
	{
		"an element is called while a call of its key runs", "K1", "core/keys.go",
		`p.prev == nil && p.line.outliving == 0`,
		`p.prev == nil`,
	},
	{
		"a call that outlives its attempt does not keep its key", "K1", "core/keys.go",
		`if how.OperatorPermit ||`,
		`if true ||`,
	},
	{
		"the next element of a key never starts", "K1", "core/keys.go",
		`	o.startFirst(l)
`,
		``,
	},
	{
		"what has timed out behind others of its key never leaves", "K1", "core/keys.go",
		`for l.first != nil && l.first.phase == done {`,
		`for false {`,
	},
	{
		"an element that has failed behind others of its key is never handed over", "K1", "core/keys.go",
		`		g.sink.toOffer.Push(l.first)
`,
		``,
	},
	{
		"a key that cannot be found again has a line", "K1", "core/keys.go",
		`return equal(k, k)`,
		`return true || equal(k, k)`,
	},
	{
		"a message that failed is acknowledged", "D1", "core/messages.go",
		`	default:
		m.Release(msg)`,
		`	default:
		m.settlements.Push(settlement{msg, message.Settlement{Kind: message.Done}})`,
	},
	{
		"a message that was handed over comes back", "D1", "core/messages.go",
		`m.settle(msg, m.failure(s, message.HandedOver))`,
		`m.settle(msg, m.failure(s, message.Failed))`,
	},
	{
		"a message whose results carry it on is settled", "D2", "core/messages.go",
		`if !msg.Pending() || m.isCarried(s) {`,
		`if !msg.Pending() {`,
	},
	{
		"a message that its sink refuses is acknowledged", "D1", "core/messages.go",
		`Kind: message.Rejected,`,
		`Kind: message.Done,`,
	},
	{
		"a call does not know the history of its message", "D6", "core/path.go",
		`		t.Carry(g.messages.attached.get(s.index))
`,
		`		t.Carry(call.Message{})
`,
	},
	{
		"a timeout of its own may only be longer", "A3", "core/timeouts.go",
		`own != g.Timeout {`,
		`own > g.Timeout {`,
	},
	{
		"what was not accepted is reported as emitted", "O1", "core/observers.go",
		`&observe.Ending{How: how}, false`,
		`&observe.Ending{How: observe.Emitted}, false`,
	},
	{
		"an observer that breaks is called again", "O1", "core/observers.go",
		`			o.numInformed++
			if n.isEnd {
				observer.Ended(n.ctx, n.element)
			} else {
				observer.AttemptEnded(n.ctx, n.attempt)
			}
`,
		`			if n.isEnd {
				observer.Ended(n.ctx, n.element)
			} else {
				observer.AttemptEnded(n.ctx, n.attempt)
			}
			o.numInformed++
`,
	},

	// ---- call

	{
		"the second completion counts", "A2", "call/token.go",
		`if before&(claimed|contextEnded) != 0 {`,
		`if before&contextEnded != 0 {`,
	},
	{
		"a completion that came too late is not counted", "A2", "call/token.go",
		`			if before&completed != 0 && before&uncalled == 0 {
				t.Host.late.Add(1)
			}
`,
		``,
	},
	{
		"a call begins after a cancel", "A5", "call/token.go",
		`case h.Cancelled() || h.Suspended.Load():`,
		`case h.Suspended.Load():`,
	},
	{
		"a call begins behind the final checkpoint", "C1", "call/token.go",
		`case h.Cancelled() || h.Suspended.Load():`,
		`case h.Cancelled():`,
	},
	{
		"a call begins at the deadline", "A5", "call/token.go",
		`h.Clock.Now() >= t.Until:`,
		`h.Clock.Now() > t.Until:`,
	},
	{
		"a completion in place goes before what is in the mailbox", "Q1", "call/token.go",
		`s&postsLetter == 0 && t.Host.Mail.Empty():`,
		`s&postsLetter == 0:`,
	},
	{
		"an operator that has ended takes what comes later into its mailbox", "F1", "core/ending.go",
		`g.Host.Mail.Close()`,
		`g.Host.Mail.Take()`,
	},
	{
		"an operator that has ended keeps calls that returned as it did", "F1", "call/host.go",
		`		if head == &closed {
			return
		}
`,
		``,
	},
	{
		"a member gives the permit of its batch back", "A5", "call/token.go",
		`state&(bit|withoutPermits) == bit &&`,
		`state&bit == bit &&`,
	},
	{
		"a call that ignores its end gives the permit of its backend back", "A5", "call/token.go",
		` && (state&occupied == 0 || state&returned != 0)`,
		``,
	},
	{
		"what the context of a call has said changes", "A2", "call/token.go",
		`			set &^= expired `,
		`			_ = set `,
	},
	{
		"completions are read in the wrong order", "Q1", "call/host.go",
		`	var oldest *Letter
`,
		`	if true {
		return m.head.Swap(nil)
	}
	var oldest *Letter
`,
	},
	{
		"a job waits for another to return", "D4", "call/host.go",
		`	w.due = max(0, w.due-1)
	w.sendNext()
`,
		`	w.due = max(0, w.due-1)
`,
	},
	{
		"an element knows the history of the message around its operator", "D6", "call/context.go",
		`return nil // the message of`,
		`// the message of`,
	},
	{
		"a blocking call never gives its permit back", "A6", "call/token.go",
		`defer a.Returned() // even`,
		`_ = a // even`,
	},
	{
		"a call is made for an element that has ended", "A5", "call/host.go",
		`case j.Attempt.Late() != nil:`,
		`case false:`,
	},
	{
		"a batch is called for elements that are late", "A5", "call/batch.go",
		`	b.leaveOutLate()
	if len(b.ins) == 0 {`,
		`	if len(b.ins) == 0 {`,
	},
	{
		"a batch that panics has no outcome", "A6", "call/batch.go",
		`		b.deliver(b.outs, b.ctxs, func(_ int, out Future[OUT]) { out.CompleteExceptionally(err) })
`,
		`		_ = err
`,
	},
	{
		"a future that panics holds up the other members", "A6", "call/batch.go",
		`		b.deliver(outs[next:], ctxs[next:], `,
		`		_ = func(...any) {}; b.deliver(nil, nil, `,
	},
	{
		"a request that the function has reported itself is deduplicated", "X1", "call/stage.go",
		`state&(requests|sent) == 0`,
		`state&requests == 0`,
	},
	{
		"a request under another id is deduplicated", "X1", "call/stage.go",
		`u.Reporter.ReportSent(false)`,
		`u.Reporter.ReportSent(true)`,
	},

	// ---- drive

	{
		"the end of the input cuts retries that are to be drained", "A5", "drive/items.go",
		`	if !d.drainsRetries {
`,
		`	if true {
`,
	},
	{
		"the marker of the end does not end retries", "A5", "drive/items.go",
		`			d.input = inputMarked
			d.endRetriesAndWaits()
`,
		`			d.input = inputMarked
`,
	},
	{
		"elements are read without a slot", "Q2", "drive/items.go",
		`d.letsIn = d.backlog.Len() == 0 && d.core.FreeSlots() > 0 &&`,
		`d.letsIn = d.backlog.Len() == 0 &&`,
	},
	{
		"an element overtakes those that were read past the capacity", "Q1", "drive/items.go",
		`d.letsIn = d.backlog.Len() == 0 && d.core.FreeSlots() > 0 &&`,
		`d.letsIn = d.core.FreeSlots() > 0 &&`,
	},
	{
		"a stream that ends without a final barrier ends well", "C3", "drive/items.go",
		`&& !d.final { // the stream`,
		`&& false { // the stream`,
	},
	{
		"the same barrier may come twice", "C2", "drive/items.go",
		`isEndOfInput(b)); err != nil { // law C2`,
		`isEndOfInput(b)); err != nil && false { // law C2`,
	},
	{
		"an observer with numbers is behind an operator that reorders", "C2", "drive/items.go",
		`if d.Observer != nil && b.IsReordered() {`,
		`if false {`,
	},
	{
		"a barrier splits the results of an element", "Q1", "drive/items.go",
		`if len(d.results) < d.numResults {`,
		`if false {`,
	},
	{
		"a message is settled although its parts carry it on", "D2", "drive/items.go",
		`			d.messages.NoteCarried() // the`,
		`			// the`,
	},
	{
		"the source is not cancelled after a failure", "F1", "drive/finish.go",
		`		d.cancelUpstream(err)
`,
		``,
	},
	{
		"the parts of a message that were not sent are lost", "D1", "drive/finish.go",
		`		d.messages.Release(message.With(part, struct{}{}))
`,
		`		_ = part
`,
	},
	{
		"what is in the final checkpoint is reported as discarded", "O1", "drive/finish.go",
		`d.refused(observe.Kept, call.Message{})`,
		`d.refused(observe.Discarded, call.Message{})`,
	},
	{
		"what comes again is offered to the failure sink", "A1", "drive/finish.go",
		`if hasFailed || !d.isRedelivered(e) {`,
		`if true {`,
	},
	{
		"what the final checkpoint keeps is reported as abandoned", "O1", "drive/finish.go",
		`d.core.Ended(e, observe.Kept)`,
		`d.core.Ended(e, observe.Abandoned)`,
	},
	{
		"what the failure sink takes last is reported as abandoned", "O1", "drive/finish.go",
		`d.core.Ended(e, observe.HandedOver)`,
		`d.core.Ended(e, observe.Abandoned)`,
	},
	{
		"a function is closed twice", "F1", "drive/finish.go",
		`	d.closer = nil
	if err := call.OffLoop(closer.Close)`,
		`	if err := call.OffLoop(closer.Close)`,
	},
	{
		"the coordinator does not know of a failure", "C3", "drive/checkpointing.go",
		`	case err != nil:
		d.Coordinator.Fail(d.Name, err)
`,
		`	case err != nil:
`,
	},
	{
		"an element may follow a final barrier", "C2", "drive/checkpointing.go",
		`return guard.Wrap("asyncop", wiring.ErrAfterFinal)`,
		`_ = wiring.ErrAfterFinal`,
	},
	{
		"a drain leaves elements in flight", "C1", "drive/checkpointing.go",
		`if b.Kind == participant.Drain && !d.drained() {`,
		`if false {`,
	},
	{
		"calls begin behind a barrier that suspends", "C1", "drive/life.go",
		`d.host.Suspended.Store(true)`,
		`d.host.Suspended.Store(false)`,
	},
	{
		"what was read past the capacity is not in the checkpoint", "C1", "drive/checkpointing.go",
		`			items = append(items, it)
`,
		``,
	},
	{
		"a back-off stops while its element waits for a slot", "C3", "drive/checkpointing.go",
		`it.Wait-(now-k.backlogFilled))`,
		`it.Wait+0*(now-k.backlogFilled))`,
	},
	{
		"a back-off stops between two runs", "C3", "drive/checkpointing.go",
		`max(0, it.Wait-time.Duration(down))`,
		`max(0, it.Wait-0*time.Duration(down))`,
	},
	{
		"a state without numbers is taken for one with numbers", "X1", "drive/checkpointing.go",
		`case (d.Observer != nil) == (s.Observer != nil) || s.Final`,
		`case true || s.Final`,
	},
	{
		"what lies in a ring is reported as emitted", "O1", "drive/observing.go",
		`d.leaving.Push(leaving{r, upTo, by})`,
		`_, _ = upTo, by; d.observing.RecordEnd(r, observe.Emitted)`,
	},
	{
		"what the reader did not take is reported as emitted", "O1", "drive/observing.go",
		`		if d.mayObserve() {
			how`,
		`		if true {
			how`,
	},
	{
		"a gate that panics does not end the run", "A6", "drive/observing.go",
		`		d.core.End(guard.Wrap("asyncop: gate", call.Panicked(recovered)))
`,
		`		_ = guard.Wrap("asyncop: gate", call.Panicked(recovered))
`,
	},
	{
		"the message that the body has is lost", "D1", "drive/results.go",
		`		<-d.done
		d.release(held)
`,
		`		<-d.done
		_ = held
`,
	},
	{
		"an input that panics ends well", "A6", "drive/results.go",
		`		d.inputErr.set(guard.Wrap("asyncop: input of Results", call.Panicked(recovered)))
		d.host.Cancel(d.inputErr.get())
`,
		`		_ = guard.Wrap("asyncop: input of Results", call.Panicked(recovered))
`,
	},
	{
		"the reader is done with what lies in the ring", "O1", "drive/ring.go",
		`o.consumed.Store(o.ring.head.Load())`,
		`o.consumed.Store(o.ring.tail.Load())`,
	},
	{
		"unknown marks of a state are passed over", "C2", "drive/state.go",
		`if marks >= unknownMarks {`,
		`if false {`,
	},
	{
		"a state of another version is read", "W4", "drive/state.go",
		`if d.Err == nil && version != stateVersion {`,
		`if false {`,
	},
	{
		"the steps upstream continue after a failure", "F1", "drive/finish.go",
		`		d.failUpstream(err)
`,
		``,
	},
	{
		"To waits for ever after a cancel", "F1", "drive/transfer.go",
		`	case t.d.delivery.cut.Load():
		t.startGrace(false)
`,
		``,
	},
	{
		"steps downstream wait for ever after a cancel", "F1", "drive/transfer.go",
		`		d.Clock.AfterFunc(grace, func() { node.CutDownstream(err) })
`,
		`		_ = node
`,
	},
	{
		"messages that were not delivered are lost", "D1", "drive/transfer.go",
		`		t.d.release(message.With(m, struct{}{}))
`,
		`		_ = m
`,
	},
	{
		"what follows takes the end of a failed stream for a clean one", "F1", "drive/transfer.go",
		`		t.deliver(wiring.Failure{Err: err})
`,
		`		_ = wiring.Failure{Err: err}
`,
	},

	// ---- Changes by hand that no test noticed

	{
		"the loop takes a port that it has not looked at", "F1", "drive/ports.go",
		`	if a != d.current {`,
		`	if a = d.attached.Load(); a != d.current {`,
	},

	{
		"the offers of an element to the failure sink have different names", "A1", "core/sink.go",
		`o.wait, o.name = min(2*last.wait, lastOffer), last.name`,
		`o.wait = min(2*last.wait, lastOffer)`,
	},
	{
		"an attempt gets the reservation of another attempt", "B5", "core/path.go",
		`g.lookups.reservation != nil
	if g.unread == nil`,
		`g.lookups.reservation != nil && false
	if g.unread == nil`,
	},
	{
		"a retry in a batch counts as a first attempt", "B3", "core/backend.go",
		`	b.request = gate.Request{Retry: s.attempts > 0}`,
		`	b.request = gate.Request{}`,
	},
	{
		"an element that the sink takes while the run ends is reported as abandoned", "O1", "drive/finish.go",
		`failed, taken := e.WaitsForSink(), d.sink.WasTaken(e)`,
		`failed, taken := e.WaitsForSink(), false`,
	},
	{
		"a call that was not made counts as late", "A2", "call/token.go",
		`t.state.Or(claimed|uncalled)&`,
		`t.state.Or(claimed)&`,
	},
	{
		"a call that was not made counts as late if its letter was not read", "A2", "call/token.go",
		`if before&completed != 0 && before&uncalled == 0 {`,
		`if before&completed != 0 {`,
	},
	{
		"Refuse of an attempt that is over counts as late", "A2", "call/token.go",
		`	if a.claimUncalled() {`,
		`	if a.claim() {`,
	},
	{
		"a call around the operator does not learn of calls that are cut off", "X1", "core/path.go",
		`outer != nil && how != completed`,
		`outer != nil && how == ranOut`,
	},
	{
		"a call around the operator does not learn of calls that time out", "X1", "core/path.go",
		`outer != nil && how != completed`,
		`outer != nil && how == cutOff`,
	},
	{
		"the backend does not learn at the deadline when a message failed before", "W2", "core/backend.go",
		`				late.Failed = meta.LastFailure
`,
		`				_ = meta
`,
	},
	{
		"the loop does not sleep while a result waits after a spent budget", "T1", "drive/budget.go",
		`d.checkpoints.budget.isStored.Load() && d.mustEndForBudget()`,
		`d.checkpoints.budget.isStored.Load()`,
	},
	{
		"a spent budget keeps elements from the answers of the cache", "A5", "core/lookups.go",
		`(g.backend.wasRefused || g.backend.refusedByBudget)`,
		`g.backend.wasRefused`,
	},
	{
		"a cancel hides that the state of the final checkpoint is lost", "C3", "drive/finish.go",
		`stateErr != nil && by == core.ByCancel {`,
		`stateErr != nil && false {`,
	},
	{
		"an attempt starts at the deadline after its cost was asked for", "A5", "core/backend.go",
		`	g.overdue = g.now >= s.due
	if`,
		`	g.overdue = g.now > s.due
	if`,
	},
	{
		"a watermark with an unusual zone is not stored", "C1", "drive/state.go",
		`mark, _ = w.Timestamp.UTC().MarshalBinary()`,
		`mark, _ = w.Timestamp.MarshalBinary()`,
	},
	{
		"a watermark with an unusual zone is stored as the zero time", "C1", "drive/state.go",
		`mark, _ = w.Timestamp.UTC().MarshalBinary()`,
		`mark, _ = w.Timestamp.Truncate(24*time.Hour).UTC().MarshalBinary()`,
	},
	{
		"an element whose policy ends the goroutine does not end", "A6", "core/path.go",
		`	g.failElement(s, guard.Join(err, g.attemptEnd.err))
}`,
		`	_ = err
}`,
	},
	{
		"runtime.Goexit in user code does not end the run", "A6", "core/machine.go",
		`	if recovered == nil {`,
		`	if false {`,
	},
	{
		"a retry that met an outage is taken from the budget", "B4", "core/path.go",
		`d.NeedsBudget && !isFree && g.backend`,
		`d.NeedsBudget && g.backend`,
	},
}
