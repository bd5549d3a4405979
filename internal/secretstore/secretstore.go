// Package secretstore reads the values of secrets from Vault, AWS Secrets Manager and the keyring of the user. A program that links it can be
// the secretsource.Program of other processes.
package secretstore

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretsource"
)

func init() { secretsource.TakeOver(Read) }

// Read returns the value at a source in a store, with the settings and credentials in the environment of this process. No error has the
// value. Kinds: ErrInvalid, ErrNotExist, ErrDenied, ErrUnavailable, ErrTimeout, ErrInternal.
func Read(ctx context.Context, source string) (string, error) {
	scheme, rest, _ := strings.Cut(source, ":")
	r := request{source, rest}
	switch scheme {
	case "vault":
		return r.readVault(ctx)
	case "aws":
		return r.readAWS(ctx)
	case "keyring":
		return r.readKeyring()
	}
	return "", r.newError(atoll.ErrInvalid, "use "+secretsource.Forms)
}

// A request asks a store for the value at a source.
type request struct {
	source string
	rest   string // of the source, after its scheme
}

// newError returns an error of the request.
func (r request) newError(kind atoll.Kind, format string, args ...any) error {
	return atoll.Errorf("secret", r.source, kind, format, args...)
}

// pickField returns a field of an object: text as it is, and numbers and booleans as JSON has them.
func (r request) pickField(object map[string]json.RawMessage, field string) (string, error) {
	raw, ok := object[field]
	if !ok {
		return "", r.newError(atoll.ErrNotExist, "the secret has no field %q", field)
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", r.newError(atoll.ErrInternal, "the field %q is not JSON", field) // the error could have a part of the value
	}
	switch v := value.(type) {
	case string:
		return v, nil
	case float64, bool:
		return string(raw), nil
	}
	return "", r.newError(atoll.ErrInvalid, "the field %q must be text", field)
}
