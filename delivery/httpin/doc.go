// Package httpin takes messages in by HTTP: a handler that answers 202 Accepted when the message is safe in a queue, for a
// worker to process it later.
//
//	queue := store.NewSink(s, "orders", codec.JSON[Order]())
//	http.Handle("POST /orders", httpin.NewHandler(queue, codec.JSON[Order](), nil))
//
// A client that got no answer sends the request again, with the same Idempotency-Key: a store takes both for one message.
//
//	status                      when
//	202 Accepted                the message is safe, now or since an earlier request with the same id; the body is {"id":"…"}
//	400 Bad Request             the codec cannot read the body, or the id or a header is over its limit
//	405 Method Not Allowed      the method is not POST
//	413 Content Too Large       the body is larger than WithMaxBytes allows
//	422 Unprocessable Content   the sink has rejected the message
//	503 Service Unavailable     the sink has failed, so the message may be safe or not; Retry-After says when to send it again
package httpin
