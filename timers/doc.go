// Package timers is a timer service for an event loop on a
// [github.com/benbjohnson/clock.Clock]: one timer of the runtime serves a million
// elements.
//
// # Vocabulary
//
//   - An instant is a time.Duration since the service was made, by the clock's monotonic
//     time.
//   - A [Timer] is embedded in the waiting object, so arming it does not allocate.
//   - A [Heap] orders armed timers: a 4-ary heap with the due times inline, so that
//     sifting does not read timers.
//   - A [Service] is a heap on a clock: it returns due timers, and wakes its loop for the
//     next timer.
//
// # Guarantees (law T1)
//
// [Service.PopDue] never returns a timer early. It returns timers with equal due times in
// the order in which they were armed. Arming and cancelling do not allocate once the heap
// has grown, and cost O(log n). An idle service uses no CPU time. The resolution is the
// clock's, nanoseconds; the lateness depends on the runtime's timer and on when the loop
// calls PopDue.
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
// A heap or service belongs to the loop. Only the wake function is called from other
// goroutines.
package timers
