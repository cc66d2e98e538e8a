// Package httpretry names the reasons of failed HTTP calls and knows which may
// happen twice.
//
// # Vocabulary
//
// A response with an error status becomes an error by [CheckResponse]; a response
// may also be the result of the call itself. What fails without a response is the
// business of package netretry, with what only HTTP knows added: the stage, by
// [Transport], and the errors of net/http that have no type.
//
//	status   reason                      a POST may be retried
//	408      RequestTimeout              yes: the server never got the whole request
//	425      TooEarly                    yes: the server refused to process it
//	429      TooManyRequests             yes: the server refused to process it
//	500      InternalServerError         no
//	502      BadGateway                  no: the server behind it may have got it
//	503      ServiceUnavailable          no: a proxy says so, too, of a connection lost
//	504      GatewayTimeout              no
//	others   none, the outcome is accepted
//
// After a redirect that changed the method, as 303 makes a GET of a POST, the
// first three are AfterRedirect: the POST has been executed.
//
// A call that makes several requests and joins their errors, or has several
// responses as results, is retried as a whole: for the reason that allows least
// ([predicates.WeakestOf]). So a 429 beside a 502, a 200 or a lost connection does
// not have a POST repeated.
//
// A status is the answer to the call, whatever stage was reported. That it answered
// something that precedes the call, such as a request for a token, is for the
// function to say:
//
//	return Page{}, &predicates.StageError{Stage: predicates.ClientDispatch, Err: err}
//
// Then a listed status is netretry.NotSent.
//
// # Guarantees
//
// Without [Transport], errors of an http.Client never count as "nothing was sent",
// since they do not tell whether the client had followed a redirect before. With
// it they do where that is certain. The default is thereby safe, and a POST to a
// host that refuses connections is retried with Transport only.
//
// Retry-After is a pushback ([predicates.ServerPushback]), honoured by
// strategies.HonorPushback.
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
//	policy := strategies.ReasonAware(httpretry.Classifier[Page](),
//		strategies.HonorPushback(strategies.BestEffort[Page]())).Idempotent()
//
// A table of one's own goes first and overrides rows of the one above:
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
