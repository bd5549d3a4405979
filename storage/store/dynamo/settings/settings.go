// Package settings has the defaults and checks of the settings of the store dynamo, for programs that do not link it.
package settings

import (
	"regexp"
	"sync"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/endpoint"
)

// DefaultPrefix is the default prefix of table names.
const DefaultPrefix = "atoll-"

// tablePrefix matches valid prefixes; maxPrefix leaves room for the rest of a table name.
var tablePrefix = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]+$`) })

const maxPrefix = 200

// CheckPrefix returns an error if prefix is not valid in table names. Kinds: ErrInvalid.
func CheckPrefix(prefix string) error {
	if len(prefix) > maxPrefix || !tablePrefix().MatchString(prefix) {
		return atoll.Errorf("", "", atoll.ErrInvalid, "%q: use up to %d letters, digits, '-', '_' or '.'", prefix, maxPrefix)
	}
	return nil
}

// CheckEndpoint returns an error if text is not a valid URL of a service. plain allows a service on another machine without TLS. Kinds:
// ErrInvalid.
func CheckEndpoint(text string, plain bool) error {
	if err := endpoint.Check(text, plain); err != nil {
		return atoll.E("", "", atoll.ErrInvalid, err)
	}
	return nil
}
