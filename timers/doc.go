// Package timers is a timer service for an event loop: deadlines and back-offs of a million elements on one
// [github.com/benbjohnson/clock.Clock], with one timer of the runtime for all of them.
//
// # Vocabulary
//
//   - An instant is a time.Duration since the service was made, measured on the clock's monotonic time.
//   - A [Timer] is part of what waits (an element's slot), so arming it allocates nothing of its own.
//   - A [Heap] orders armed timers: a 4-ary heap with the due times inline, so that sifting reads no timer.
//   - A [Service] is a heap on a clock: it returns what is due, and wakes its loop for what comes next.
//
// # Guarantees (law T1)
//
// [Service.PopDue] never hands a timer out early. Timers with equal due times are handed out in the order in which they were
// armed. Arming and cancelling allocate nothing once the heap has grown, and cost O(log n). An idle service costs nothing:
// there is no ticking; a service with armed timers has one pending runtime timer. The resolution is that of the clock,
// nanoseconds; how late a timer is handed out depends on the runtime's timer and on when the loop asks.
//
// # Use
//
//	wake := make(chan struct{}, 1)
//	service := timers.NewService[*Job](clock.New(), func() {
//		select {
//		case wake <- struct{}{}:
//		default:
//		}
//	})
//	defer service.Stop()
//	service.Arm(&job.timer, service.Now()+100*time.Millisecond)
//	for {
//		for t := service.PopDue(service.Now()); t != nil; t = service.PopDue(service.Now()) {
//			t.Value.run()
//		}
//		if service.Schedule() {
//			<-wake
//		}
//	}
//
// # Concurrency
//
// A heap or service has one owner, the loop. Only the wake function is called from elsewhere.
package timers
