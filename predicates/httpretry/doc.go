// Package httpretry classifies failed HTTP calls, and determines which calls may happen
// twice.
//
// # Vocabulary
//
// [CheckResponse] makes an error of a response with an error status; a response may also
// be a result of the call. Package netretry classifies failures without a response. This
// package adds the stage, with [Transport], and the errors of net/http without a type.
//
//	status   reason                      a POST may be retried
//	408      RequestTimeout              yes: the server did not receive the whole request
//	425      TooEarly                    yes: the server refused to process it
//	429      TooManyRequests             yes: the server refused to process it
//	500      InternalServerError         no
//	502      BadGateway                  no: the server behind the proxy may have received it
//	503      ServiceUnavailable          no: proxies also return it for a lost connection
//	504      GatewayTimeout              no
//	529      Overloaded                  no
//	others   see below
//
// Other statuses of 4xx are rejections ([predicates.NewRejection]), named like
// HTTP_404_NOT_FOUND: 400 to 405, 407, 409 to 415, 417, 421 to 424, 426, 428, 431 and
// 451. They are not retried, and their failure is not in doubt. 406 and 416, which may
// follow an effect, statuses that no RFC defines, and other 5xx do not get a reason, and
// their call is in doubt.
//
// A tracker of package exactlyonce marks its answers with the header Exactly-Once-Result.
// 409 while an earlier attempt runs is InProgress: it is retried if the call may be
// repeated, for instance because it is deduplicated. 503 of a full tracker is
// TrackerFull, and may be repeated. A stale request, 410, does not get a reason and is in
// doubt.
//
// After a redirect that changed the method, such as a 303 that turns a POST into a GET,
// the first three become AfterRedirect, since the POST was executed. A rejection then
// does not prove that the call had no effect.
//
// # Calls with several requests
//
// A call that joins the errors of several requests, or has several responses as results,
// is retried for the reason that allows least (see [predicates.Classifier]). So a 429
// together with a 502, a 200 or a lost connection does not lead to a repeated POST.
//
// [Transport] also reports successful requests. If a POST may have been executed, the
// call is not repeated because of a later request:
//
//	refused dial, 408, 425, 429, rejections   withdraw only their own request
//	307, 308                                  the same: the request went elsewhere
//	any other answer or error                 the request stays in doubt
//	GET, HEAD, OPTIONS, TRACE                 never in doubt: they have no effect
//
// Use a context without reports for a request that does not belong to the call, such as a
// request for a token:
//
//	ctx := predicates.WithStageReporter(ctx, nil)
//
// Mark its error, whose status would otherwise count as the answer to the call:
//
//	return Page{}, &predicates.StageError{Stage: predicates.ClientDispatch, Err: err}
//
// Then a listed status is netretry.NotSent.
//
// # Guarantees
//
// Without [Transport], requests are not reported, and errors of an http.Client never
// count as "not sent", since the client may have followed a redirect. So the default is
// safe for calls of one request, but a POST to a host that refuses connections is retried
// only with Transport.
//
// A proxy that answers CONNECT with 429, 502, 503 or 504 has not sent the request. With
// Transport that is netretry.NotConnected, without it no reason.
//
// Over HTTP/2 a stream or a connection that ends is a lost connection
// (netretry.ConnectionLost). With Transport, REFUSED_STREAM and a GOAWAY below the stream
// of the request count as "not sent".
//
// The first of these headers that is present demands a delay: Retry-After-Ms, in
// milliseconds; Retry-After; and, in an answer of 429, X-Ratelimit-Reset,
// X-Ratelimit-Reset-NAME and Anthropic-Ratelimit-NAME-Reset. Of several resets, the
// longest of the limits whose header Remaining is 0 counts; without such a limit, the
// shortest.
//
// Such a delay is a pushback ([predicates.ServerPushback]), which strategies.ReasonAware
// obeys. A delay of 0, such as a date that has passed, is not a demand: the strategy's
// own delay counts.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Use
//
//	client := &http.Client{Transport: httpretry.Transport(nil)}
//	get := asyncop.Blocking(func(ctx context.Context, url string) (Page, error) {
//		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
//		…
//		resp, err := client.Do(req)
//		…
//		defer resp.Body.Close()
//		if err := httpretry.CheckResponse(resp); err != nil {
//			return Page{}, err
//		}
//		…
//	})
//	policy := strategies.ReasonAware(httpretry.Classifier[Page](), strategies.BestEffort[Page]()).Idempotent()
//
// Put a table of your own first: it overrides rows of the table above. It applies to all
// requests of a call:
//
//	predicates.Classifiers(
//		predicates.ByCode(httpretry.StatusCode[Page](), map[int]predicates.Reason{503: httpretry.TooManyRequests}),
//		httpretry.Classifier[Page]())
//
// # Sources
//
// RFC 9110 (HTTP semantics), RFC 8470 (425), RFC 6585 (429), and the rules by which
// net/http itself repeats requests.
package httpretry
