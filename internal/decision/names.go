package decision

import "github.com/weirflow/weir/predicates"

var (
	// namedErrors classifies errors of HTTP calls and connections.
	namedErrors predicates.Classifier[struct{}]
	// knownTexts are the beginnings of texts by which namedErrors knows errors made by
	// errors.New.
	knownTexts []string
)

// SetNamedErrors sets the classifier of [NamedErrors], and the beginnings of the texts of
// all errors made by errors.New that it may know. Package httpretry calls it during
// initialisation: operators do not import it, so that programs need not link net/http.
func SetNamedErrors(classify predicates.Classifier[struct{}], texts ...string) {
	namedErrors, knownTexts = classify, texts
}

// NamedErrors classifies errors of HTTP calls and connections, if the program has package
// httpretry. Programs with package delivery have it.
func NamedErrors[OUT any](a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
	if namedErrors == nil || a.Err == nil {
		return predicates.Reason{}, false
	}
	of := predicates.Attempt[struct{}]{Number: a.Number, Err: a.Err, Stage: a.Stage, InDoubt: a.InDoubt}
	reason, ok := namedErrors(&of)
	a.Stage = of.Stage
	return reason, ok
}
