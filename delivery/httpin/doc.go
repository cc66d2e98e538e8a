// Package httpin takes messages in by HTTP: a handler that answers 202 Accepted when the
// message is safe in a queue, for a worker to process it later.
//
//	queue := delivery.NewQueue[Order](engine, "orders")
//	http.Handle("POST /orders", httpin.NewHandler(queue, codec.JSON[Order](), nil))
//
// A client that got no answer sends the request again, with the same Idempotency-Key.
//
// # Keys
//
// A handler remembers the last 100,000 keys that it got since its process started, with a
// hash of their requests: path, query, Content-Type and body. When its message is safe,
// the same request again has the same answer, and no second message, even if the message
// is done by then. While the message is being stored, the same request waits for that,
// for 10 s at most, and the handler goes on if the client goes away. Another request with
// the key is refused.
//
// A key that is older, or that another process or an earlier process got, is known to the
// queue only: a store drops a second message with the same id while the first is in the
// queue, whatever its content, and JetStream within its window for duplicates. After that
// the message is processed again. So send the requests of a client to a single process,
// or let the worker make its effects once by the id of the message (package exactlyonce).
//
// # Answers
//
//	status                      when
//	202 Accepted                the message is safe, now or since an earlier request with the same key; the body is {"id":"…"}
//	400 Bad Request             the codec cannot read the body, or the id or a header is over its limit
//	405 Method Not Allowed      the method is not POST
//	408 Request Timeout         the body did not come in time, or not whole; send it again
//	413 Content Too Large       the body is larger than WithMaxBytes allows
//	422 Unprocessable Content   the sink can never take the message, or another request had its Idempotency-Key
//	503 Service Unavailable     the sink has failed, or taken 10 s: the message may be safe or not; Retry-After says when to send it again
package httpin
