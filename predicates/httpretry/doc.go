// Package httpretry names the reasons of failed HTTP calls and knows which may happen
// twice.
//
// # Vocabulary
//
// A response with an error status becomes an error by [CheckResponse]; a response may
// also be the result of the call itself. Package netretry judges failures without a
// response. This package adds the knowledge of HTTP: the stage, by [Transport], and the
// errors of net/http without a type.
//
//	status   reason                      a POST may be retried
//	408      RequestTimeout              yes: the server never got the whole request
//	425      TooEarly                    yes: the server refused to process it
//	429      TooManyRequests             yes: the server refused to process it
//	500      InternalServerError         no
//	502      BadGateway                  no: the server behind it may have got it
//	503      ServiceUnavailable          no: a proxy says so, too, of a connection lost
//	504      GatewayTimeout              no
//	529      Overloaded                  no
//	others   see below
//
// Other statuses of 4xx are rejections ([predicates.NewRejection]), named like
// HTTP_404_NOT_FOUND: the server has refused for good and did not execute the request.
// They are not retried, and their failure is not in doubt. They are 400 to 405, 407, 409
// to 415, 417, 421 to 424, 426, 428, 431 and 451. Missing are 406 and 416, which may be
// answered after an effect, and statuses that no RFC defines: these, and 5xx that are not
// in the table, do not get a reason, and their call is in doubt.
//
// Answers of a tracker of package exactlyonce, which an id in the request has caused, are
// distinguished from the answers of the service by the header Exactly-Once-Result. 409
// for a request of which an earlier attempt runs is InProgress: it is repeated where the
// call may be, as a deduplicated call is. 503 of a full tracker is TrackerFull, and may
// be repeated. A stale request, 410, does not get a reason and is in doubt: whether it
// was executed is unknown.
//
// After a redirect that changed the method, as 303 makes a GET of a POST, the first three
// are AfterRedirect: the POST has been executed. A rejection then does not count.
//
// # Calls with several requests
//
// A call that joins the errors of several requests, or has several responses as results,
// is retried as a whole: for the reason that allows least (see [predicates.Classifier]).
// So a 429 beside a 502, a 200 or a lost connection does not lead to a repeated POST.
//
// [Transport] also knows the requests that succeeded: it reports each to the attempt. A POST that was executed, or may have been, keeps the call
// from being repeated for the outcome of a later request:
//
//	refused dial, 408, 425, 429, rejections   take back their own request only
//	307, 308                                  the same: the request went elsewhere
//	any other answer or error                 the request stays in doubt
//	GET, HEAD, OPTIONS, TRACE                 are never in doubt: nothing to repeat
//
// A request that does not belong to the call, such as a request for a token, is made
// under a context of its own:
//
//	ctx := predicates.WithStageReporter(ctx, nil)
//
// and its status, which is otherwise the answer to the call, is marked by the function:
//
//	return Page{}, &predicates.StageError{Stage: predicates.ClientDispatch, Err: err}
//
// Then a listed status is netretry.NotSent.
//
// # Guarantees
//
// Without [Transport], errors of an http.Client never count as "not sent", since they do
// not report whether the client had followed a redirect before, and no request is
// reported. With it they do where that is certain. The default is thereby safe for calls
// of one request, and a POST to a host that refuses connections is retried with Transport
// only.
//
// A proxy that answers CONNECT with 429, 502, 503 or 504 has not sent the request: with
// Transport that is netretry.NotConnected, without it the error lacks a reason.
//
// Over HTTP/2 a stream or a connection that ends is a lost connection
// (netretry.ConnectionLost). With Transport, REFUSED_STREAM and a GOAWAY whose last
// stream is below the request's count as "not sent": the server has not processed the
// request.
//
// These headers demand a delay, the first of them that is there: Retry-After-Ms, in
// milliseconds; Retry-After; and, in an answer of 429, X-Ratelimit-Reset,
// X-Ratelimit-Reset-NAME and Anthropic-Ratelimit-NAME-Reset. Of several limits the ones
// count whose header Remaining is 0, and the longest of them; without such a header it is
// the shortest.
//
// Such a delay is a pushback ([predicates.ServerPushback]), which strategies.ReasonAware
// obeys: where a call is repeated at all, that happens after exactly this delay, or not
// at all if the element's time ends before. A delay of 0, such as a date that has passed,
// is not a demand: the strategy's own delay counts.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
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
// Put a table of your own first: it overrides rows of the table above. It applies to the
// whole call: where a call makes several requests, a row that allows a POST to be
// repeated allows it for all of them.
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
