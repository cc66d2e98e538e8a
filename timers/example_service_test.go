package timers_test

import (
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/timers"
)

// A job waits on a timer that is part of the job, so waiting costs neither a goroutine
// nor a timer of the runtime.
type Job struct {
	name  string
	timer timers.Timer[*Job]
}

// An event loop sleeps until the next timer is due.
func ExampleService() {
	wake := make(chan struct{}, 1)
	service := timers.NewService[*Job](clock.New(), func() {
		select {
		case wake <- struct{}{}:
		default: // a wake-up is pending already
		}
	})
	defer service.Stop()

	for i, name := range []string{"third", "second", "first"} {
		job := &Job{name: name}
		job.timer.Value = job
		service.Arm(&job.timer, service.Now()+time.Duration(3-i)*10*time.Millisecond)
	}
	for service.Len() > 0 {
		for t := service.PopDue(service.Now()); t != nil; t = service.PopDue(service.Now()) {
			fmt.Println(t.Value.name)
		}
		if service.Len() > 0 && service.Schedule() {
			<-wake
		}
	}
	// Output:
	// first
	// second
	// third
}
