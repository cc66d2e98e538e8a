package jobs_test

import (
	"context"
	"fmt"
	"strconv"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// The bank was down. Its payments go back to their queue when it works again, 100 in a
// second.
func Example() {
	ctx := context.Background()
	engine := memory.Open()
	payments := delivery.NewQueue[int](engine, "payments")
	for i, provider := range []string{"bank", "wallet", "bank"} {
		m := store.Message{
			Meta:    message.Meta{ID: fmt.Sprint("payment ", i), Provider: provider, Visit: 4},
			Payload: []byte(strconv.Itoa(100 * i)), Cause: store.Exhausted,
		}
		if err := engine.Put(ctx, payments.DeadLetters(), m); err != nil {
			panic(err)
		}
	}

	j, err := jobs.New(engine, jobs.Config{})
	if err != nil {
		panic(err)
	}
	job, err := j.Start(ctx, jobs.Spec{
		Do: store.Merge, Queue: payments.DeadLetters(), To: payments.Name(), Filter: store.Filter{Provider: "bank"}, Rate: 100,
		By: "ann", Why: "the bank is back",
	})
	if err != nil {
		panic(err)
	}
	job, err = j.Run(ctx, job.ID, nil) // or leave it to the workers of the engine
	fmt.Println(job.Done, "of", job.Total, err)
	for line, err := range j.Log(ctx) {
		fmt.Println(line.Event, line.Job.Do, line.By, line.Why, line.Job.Done, err)
	}
	// Output:
	// 2 of 2 <nil>
	// start merge ann the bank is back 0 <nil>
	// end merge ann the bank is back 2 <nil>
}
