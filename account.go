package atoll

import "context"

// An Account is on whose behalf a call is made.
type Account struct {
	Name string `json:"name"` // empty means DefaultAccount
	Role string `json:"role"` // empty means DefaultRole
}

// What an Account is when nothing is said.
const (
	DefaultAccount = "default"
	DefaultRole    = "admin"
)

// WithDefaults returns a with what is empty filled in.
func (a Account) WithDefaults() Account {
	if a.Name == "" {
		a.Name = DefaultAccount
	}
	if a.Role == "" {
		a.Role = DefaultRole
	}
	return a
}

type accountKey struct{}

// AccountFrom returns the account of the call that ctx belongs to; that of a
// ctx that belongs to none is the default one. Front-ends let every account do
// everything: who may do what is for a layer to decide.
func AccountFrom(ctx context.Context) Account {
	a, _ := ctx.Value(accountKey{}).(Account)
	return a.WithDefaults()
}

// WithAccount returns a ctx of which AccountFrom returns a.
func WithAccount(ctx context.Context, a Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}
