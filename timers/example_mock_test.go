package timers_test

import (
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/timers"
)

// In tests a mock clock drives the service.
func ExampleService_mock() {
	mock := clock.NewMock()
	service := timers.NewService[string](mock, func() {})

	backOff := timers.Timer[string]{Value: "try again"}
	deadline := timers.Timer[string]{Value: "give up"}
	service.Arm(&deadline, 5*time.Second)
	service.Arm(&backOff, 100*time.Millisecond)

	for range 2 {
		mock.Add(100 * time.Millisecond)
		if t := service.PopDue(service.Now()); t != nil {
			fmt.Println(service.Now(), t.Value)
		} else {
			fmt.Println(service.Now(), "nothing is due")
		}
	}
	fmt.Println("cancelled:", service.Cancel(&deadline))
	// Output:
	// 100ms try again
	// 200ms nothing is due
	// cancelled: true
}
