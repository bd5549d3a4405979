// Package auth identifies the callers of a server: accounts, their roles and projects, the
// API keys by which they come, and where a call came from. The context of a call carries them.
package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Account is on whose behalf a call is made.
type Account struct {
	Name string `json:"name"` // empty means DefaultAccount
	Role string `json:"role"` // empty means DefaultRole

	// Projects are those that an account with RoleProject may use, at least one;
	// of others there are none.
	Projects []string `json:"projects,omitempty"`
	// Key and KeyName are the id and the name of the API key by which the account
	// has come; empty where that was something else.
	Key     string `json:"key,omitempty"`
	KeyName string `json:"key_name,omitempty"`
}

// The roles that mean something. Every other one that is configured may do what
// RoleAdmin may.
const (
	RoleAdmin   = "admin"   // may do everything
	RoleProject = "project" // may use what is in its projects, and sees nothing else
)

// What an Account is when nothing is said.
const (
	DefaultAccount = "default"
	DefaultRole    = RoleAdmin
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

// Bounded reports whether a may use its projects only.
func (a Account) Bounded() bool { return a.Role == RoleProject }

// May reports whether a may use a project.
func (a Account) May(project string) bool {
	return !a.Bounded() || slices.Contains(a.Projects, project)
}

// ProjectOr is the project that a means who names none: usual, or if a may not use
// that the first of its own.
func (a Account) ProjectOr(usual string) string {
	if a.May(usual) || len(a.Projects) == 0 {
		return usual
	}
	return a.Projects[0]
}

// Who tells accounts apart that may do different things: it is the same for two
// that may do the same, under the same name.
func (a Account) Who() string {
	a = a.WithDefaults()
	if !a.Bounded() {
		return a.Name
	}
	return a.Name + ":" + a.Role + ":" + strings.Join(slices.Sorted(slices.Values(a.Projects)), "+")
}

// ParseAccount reads an account as people write it: "NAME", "NAME:ROLE" or
// "NAME:project:PROJECT+PROJECT". Kinds: ErrInvalid.
func ParseAccount(text string) (Account, error) {
	bad := func() (Account, error) {
		return Account{}, atoll.E("", "", atoll.ErrInvalid, fmt.Errorf("account %q: write it like NAME, NAME:ROLE or NAME:project:PROJECT+PROJECT", text))
	}
	name, rest, withRole := strings.Cut(text, ":")
	role, projects, withProjects := strings.Cut(rest, ":")
	if !atoll.ValidName(name) || withRole && !atoll.ValidName(role) || withProjects != (role == RoleProject) {
		return bad()
	}
	a := Account{Name: name, Role: role}
	if withProjects {
		a.Projects = strings.Split(projects, "+")
		for _, p := range a.Projects {
			if !atoll.ValidName(p) {
				return bad()
			}
		}
	}
	return a, nil
}

type accountKey struct{}

// AccountFrom returns the account of the call that ctx belongs to; that of a
// ctx that belongs to none is the default one. Front-ends let every account do
// everything: who may do what is for a layer to decide, see package authz.
func AccountFrom(ctx context.Context) Account {
	a, _ := ctx.Value(accountKey{}).(Account)
	return a.WithDefaults()
}

// WithAccount returns a context of which AccountFrom returns a. Names that its caller
// gives without a project are those of a's project.
func WithAccount(ctx context.Context, a Account) context.Context {
	ctx = atoll.WithDefaultProject(ctx, a.WithDefaults().ProjectOr(atoll.DefaultProject))
	return context.WithValue(ctx, accountKey{}, a)
}

// An Origin is where a call has come from.
type Origin struct {
	Via     string `json:"via,omitempty"`     // how: "http", "ssh"
	Address string `json:"address,omitempty"` // of the other end, "192.0.2.7:40112"; empty for a socket of this machine
	Request string `json:"request,omitempty"` // id of the request, as in logs
}

type originKey struct{}

// OriginFrom returns where the call that ctx belongs to has come from; nothing is
// known of one that nobody else has made.
func OriginFrom(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}

// WithOrigin returns a ctx of which OriginFrom returns o.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

type vouchedKey struct{}

// Vouch returns a ctx whose calls ask for what was written by whoever runs this
// program, as in a template: who is bound to projects may have it though it has
// what such callers may not ask for, but in their projects only.
func Vouch(ctx context.Context) context.Context { return context.WithValue(ctx, vouchedKey{}, true) }

// Vouched reports whether ctx is one that Vouch has returned, or descends from it.
func Vouched(ctx context.Context) bool {
	ok, _ := ctx.Value(vouchedKey{}).(bool)
	return ok
}
