// Package auth identifies the callers of a server: accounts with roles and projects, API keys,
// and the origin of calls. The context of a call carries them.
package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// An Account is the identity of a caller.
type Account struct {
	Name string `json:"name"` // empty means DefaultAccount
	Role string `json:"role"` // empty means DefaultRole

	// Projects are the projects that an account with RoleProject may use, at least one. Other
	// roles have no Projects.
	Projects []string `json:"projects,omitempty"`
	// Key and KeyName are the id and the name of the caller's API key; empty if the caller did
	// not use one.
	Key     string `json:"key,omitempty"`
	KeyName string `json:"key_name,omitempty"`
}

// The roles with a meaning. A configuration may name other roles, which have the permissions of
// RoleAdmin.
const (
	RoleAdmin   = "admin"   // may do everything
	RoleProject = "project" // may use its projects, and sees nothing else
)

// The defaults of an Account.
const (
	DefaultAccount = "default"
	DefaultRole    = RoleAdmin
)

// WithDefaults returns a with its empty fields filled in.
func (a Account) WithDefaults() Account {
	if a.Name == "" {
		a.Name = DefaultAccount
	}
	if a.Role == "" {
		a.Role = DefaultRole
	}
	return a
}

// IsRestricted reports whether a may use only its Projects.
func (a Account) IsRestricted() bool { return a.Role == RoleProject }

// CanUse reports whether a may use the project.
func (a Account) CanUse(project string) bool {
	return !a.IsRestricted() || slices.Contains(a.Projects, project)
}

// ProjectOr returns the default project of a: usual if a may use it, or else the first of its
// Projects.
func (a Account) ProjectOr(usual string) string {
	if a.CanUse(usual) || len(a.Projects) == 0 {
		return usual
	}
	return a.Projects[0]
}

// Identity returns a string that is equal for accounts with the same name and the same permissions.
func (a Account) Identity() string {
	a = a.WithDefaults()
	if !a.IsRestricted() {
		return a.Name
	}
	return a.Name + ":" + a.Role + ":" + strings.Join(slices.Sorted(slices.Values(a.Projects)), "+")
}

// ParseAccount parses an account in the form "NAME", "NAME:ROLE" or
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

// AccountFrom returns the account in ctx, or the default account. Front-ends allow every account
// everything; a layer checks permissions, see package authz.
func AccountFrom(ctx context.Context) Account {
	a, _ := ctx.Value(accountKey{}).(Account)
	return a.WithDefaults()
}

// WithAccount returns a context with the account a. Calls with this context that name no project
// use the default project of a.
func WithAccount(ctx context.Context, a Account) context.Context {
	ctx = atoll.WithDefaultProject(ctx, a.WithDefaults().ProjectOr(atoll.DefaultProject))
	return context.WithValue(ctx, accountKey{}, a)
}

// An Origin describes where a call came from.
type Origin struct {
	Via     string `json:"via,omitempty"`     // the protocol: "http", "ssh", or "link" for a link to a port
	Address string `json:"address,omitempty"` // of the client, "192.0.2.7:40112"; empty for a socket of this machine
	Request string `json:"request,omitempty"` // request id, as in the server's log
}

type originKey struct{}

// OriginFrom returns the origin in ctx. It is zero for calls of the program itself.
func OriginFrom(ctx context.Context) Origin {
	o, _ := ctx.Value(originKey{}).(Origin)
	return o
}

// WithOrigin returns a context with the origin o.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

type vouchedKey struct{}

// WithTrustedSpec returns a context for calls whose specs come from the operator of this program, such as
// those of a template. An account with RoleProject may then use specs that it could not use by
// itself, in its own projects only.
func WithTrustedSpec(ctx context.Context) context.Context {
	return context.WithValue(ctx, vouchedKey{}, true)
}

// HasTrustedSpec reports whether ctx descends from a context that WithTrustedSpec returned.
func HasTrustedSpec(ctx context.Context) bool {
	ok, _ := ctx.Value(vouchedKey{}).(bool)
	return ok
}
