package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Account is on whose behalf a request is made.
type Account struct {
	Name string `json:"name"` // empty means DefaultAccount
	Role string `json:"role"` // empty means DefaultRole
}

// What an Account is when nothing is said.
const (
	DefaultAccount = "default"
	DefaultRole    = "admin"
)

func (a Account) withDefaults() Account {
	if a.Name == "" {
		a.Name = DefaultAccount
	}
	if a.Role == "" {
		a.Role = DefaultRole
	}
	return a
}

type accountKey struct{}

// AccountFrom returns the account of the request that ctx belongs to; that of
// a ctx that belongs to none is the default one. The Handler lets every
// account do everything: who may do what is for a layer to decide.
func AccountFrom(ctx context.Context) Account {
	a, _ := ctx.Value(accountKey{}).(Account)
	return a.withDefaults()
}

// WithAccount returns a ctx of which AccountFrom returns a.
func WithAccount(ctx context.Context, a Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// tokenVerifier knows tokens by their digests, so that comparing takes the
// same time whatever is right about a guess.
type tokenVerifier []struct {
	digest  [sha256.Size]byte
	account Account
}

func newTokenVerifier(tokens map[string]Account) tokenVerifier {
	v := make(tokenVerifier, 0, len(tokens))
	for token, account := range tokens {
		v = append(v, struct {
			digest  [sha256.Size]byte
			account Account
		}{sha256.Sum256([]byte(token)), account})
	}
	return v
}

// verify looks at every token, found or not.
func (v tokenVerifier) verify(_ context.Context, token string) (Account, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range v {
		if subtle.ConstantTimeCompare(digest[:], v[i].digest[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Account{}, atoll.Errorf("", "", atoll.ErrDenied, "the token is not known here")
	}
	return v[found].account, nil
}

// authenticate finds out who asks.
func (h *Handler) authenticate(r *http.Request) (Account, error) {
	if h.verify == nil {
		return AccountFrom(r.Context()), nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Account{}, unauthorized(atoll.Errorf("", "", atoll.ErrDenied, "a token is needed: send it as Authorization: Bearer ..."))
	}
	account, err := h.verify(r.Context(), strings.TrimSpace(token))
	if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable {
		return Account{}, unauthorized(err)
	}
	return account.withDefaults(), err
}

// unauthorized makes err an ErrDenied that is answered with 401.
func unauthorized(err error) error {
	if atoll.KindOf(err) != atoll.ErrDenied {
		err = atoll.E("", "", atoll.ErrDenied, err)
	}
	return statusError{err, http.StatusUnauthorized}
}
