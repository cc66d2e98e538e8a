// Package ratepace makes the pace of operators of a [golang.org/x/time/rate.Limiter].
//
//	limiter := rate.NewLimiter(100, 10) // 100 attempts a second, 10 at once
//	op := asyncop.OrderedWait(call, 5*time.Second, 1000, asyncop.WithPace(ratepace.New(limiter)))
package ratepace
