package exactlyonce

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/weirflow/weir/internal/oncewire"
)

// Request is an attempt as the server sees it.
type Request struct {
	ID

	// Scope is the authenticated principal. Ids are separate for each scope, so a client
	// cannot ask for the answers of another client.
	Scope string

	// Fingerprint is a hash of the content. Attempts with other fingerprints are not the
	// same request. Zero is not compared.
	Fingerprint [32]byte
}

// Validate returns an error of class [ErrInvalid] for an invalid [ID], or if the scope is
// not UTF-8 or contains NUL, which some databases refuse.
func (r Request) Validate() error {
	if !utf8.ValidString(r.Scope) || strings.ContainsRune(r.Scope, 0) {
		return fmt.Errorf("%w: scope %q is not UTF-8, or has the character NUL", ErrInvalid, r.Scope)
	}
	return r.ID.Validate()
}

// RequestFromContext returns the request that is handled under ctx, for a [Store].
// Requests made by the handler itself have different ids.
func RequestFromContext(ctx context.Context) (Request, bool) {
	req, ok := ctx.Value(oncewire.RequestKey{}).(Request)
	return req, ok
}
